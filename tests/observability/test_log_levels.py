"""Log levels that change at run time, and rate-limited lines."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from epp.observability import DebugLine, LevelSwitch, RepeatLimit
from epp.observability.debug_line import MAX_LINES_PER_SECOND
from epp.observability.log_levels import LEVELS, LogLevels


class Written(list[tuple[str, str]]):
    """A logger of structlog's that keeps what it gets."""

    name = "a.b"

    def msg(self, event: str) -> None:
        self.append(("", event))

    debug = info = warning = error = msg


def logger_of(levels: LogLevels, name: str) -> tuple[Written, object]:
    written = Written()
    made = levels.logger_class(name)(written, [lambda _, __, event: event["event"]], {})  # type: ignore[call-arg]
    return written, made


def say(logger: object, *levels: str) -> None:
    for level in levels:
        getattr(logger, level)(level)


ALL = ("debug", "info", "warning", "error")


def test_a_logger_that_exists_follows_a_change_and_its_end() -> None:
    levels = LogLevels()
    written, logger = logger_of(levels, "a.b")
    say(logger, *ALL)
    levels.change("", "debug")
    say(logger, "debug")
    levels.restore("")
    say(logger, "debug")
    levels.start("error")
    say(logger, *ALL)
    assert [event for _, event in written] == ["info", "warning", "error", "debug", "error"]


def test_a_bound_logger_follows_as_well() -> None:
    levels = LogLevels()
    written, logger = logger_of(levels, "a.b")
    bound = logger.bind(pool="x")  # type: ignore[attr-defined]
    levels.change("", "debug")
    say(bound, "debug")
    assert [event for _, event in written] == ["debug"]


@pytest.mark.parametrize(
    ("logger", "level"),
    [
        ("a", "debug"),
        ("a.b", "debug"),
        ("a.b.c", "error"),
        ("a.b.c.d", "error"),
        ("ab", "warning"),
        ("", "warning"),
    ],
)
def test_the_innermost_package_counts(logger: str, level: str) -> None:
    levels = LogLevels()
    levels.change("", "warning")
    levels.change("a", "debug")
    levels.change("a.b.c", "error")
    assert levels.of(logger) == level
    made = levels.logger_class(logger)
    assert levels.logger_class(logger) is made


@pytest.fixture
def _usual_level() -> Iterator[None]:
    yield
    LEVELS.start("info")


@pytest.mark.usefixtures("_usual_level")
def test_a_switch_follows_until_it_is_gone() -> None:
    switch = LevelSwitch("a.b", "debug")
    assert not switch.enabled
    LEVELS.change("a", "debug")
    assert switch.enabled
    assert not LevelSwitch("b", "debug").enabled
    LEVELS.restore("a")
    assert not switch.enabled
    known = len(LEVELS._switches)
    del switch
    assert len(LEVELS._switches) < known


@pytest.mark.usefixtures("_usual_level")
def test_a_debug_line_is_limited_and_counts_what_it_leaves_out() -> None:
    LEVELS.change("", "debug")
    line = DebugLine("thing happened", logger="a", pool="p")
    now = 0.0
    line._limit._clock = lambda: now
    made: list[int] = []

    def fields(number: int) -> dict[str, object]:
        made.append(number)
        return {"number": number}

    with capture_logs() as lines:
        for number in range(MAX_LINES_PER_SECOND + 7):
            line.write(fields, number)
        now = 1.0
        line.write(fields, 100)
        line.write(fields, number=101)
    assert made == [*range(MAX_LINES_PER_SECOND), 100, 101]
    assert lines[0] == {
        "event": "thing happened",
        "log_level": "debug",
        "number": 0,
        "pool": "p",
    }
    assert [line.get("left_out") for line in lines[-3:]] == [None, 7, None]


def test_each_kind_has_a_limit_of_its_own() -> None:
    now = 5.0
    limit = RepeatLimit(10.0, clock=lambda: now)
    assert [limit.fields("a"), limit.fields("a"), limit.fields("b")] == [{}, None, {}]
    now = 14.9
    assert limit.fields("a") is None
    now = 15.0
    assert [limit.fields("a"), limit.fields("a")] == [{"left_out": 2}, None]


def test_what_no_later_line_has_counted_can_be_taken_once() -> None:
    now = 0.0
    limit = RepeatLimit(10.0, clock=lambda: now)
    for kind in ("a", "a", "a", "b"):
        limit.fields(kind)
    now = 5.0
    for kind in ("c", "c"):
        limit.fields(kind)
    assert limit.take_left_out() == {}
    now = 10.0
    assert limit.take_left_out() == {"a": 2}
    assert limit.has_left_out
    assert limit.take_left_out(is_end=True) == {"c": 1}
    assert (limit.take_left_out(is_end=True), limit.has_left_out) == ({}, False)


def test_kinds_beyond_a_thousand_share_a_limit() -> None:
    limit = RepeatLimit(10.0, clock=lambda: 0.0)
    assert all(limit.fields(kind) == {} for kind in range(1000))
    assert limit.fields(1000) == {}
    assert limit.fields(1001) is None
    assert limit.fields(3) is None
