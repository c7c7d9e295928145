"""The lines about decisions at log level debug."""

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from epp.request_control import AllFilteredError, EndCause, decider
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest
from epp.testing import make_endpoint
from tools.harness.request_control import Epp, RefusingFilter, make_pool


class WithoutNine(Filter):
    """Removes the endpoints whose names end with a 9."""

    type = "without-nine"
    name = "nine"

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return [each for each in endpoints if not each.name.endswith("9")]


@pytest.mark.usefixtures("debug_level")
def test_a_line_says_who_won_by_how_much_and_on_what() -> None:
    epp = Epp(make_pool())
    with capture_logs() as lines:
        epp.handle().close(EndCause.COMPLETED)
    (line,) = [each for each in lines if each["event"] == "endpoint chosen"]
    a, b = line["totals"].values()
    assert line == {
        "event": "endpoint chosen",
        "log_level": "debug",
        "request_id": "r-1",
        "target_model": "llama",
        "profile": "default",
        "endpoint": "default/a",
        "margin": pytest.approx(a - b, abs=1e-4),
        "totals": {"default/a": a, "default/b": b},
        "metrics_age_seconds": line["metrics_age_seconds"],
        "candidates": 2,
        "removed": {},
    }
    assert line["metrics_age_seconds"].keys() == line["totals"].keys()
    assert a > b


@pytest.mark.usefixtures("debug_level")
def test_it_has_the_five_best_and_five_names_for_each_filter() -> None:
    pool = [make_endpoint(f"ns/{n}", address=f"10.0.0.{n}:80") for n in range(80)]
    epp = Epp(pool, filters=[WithoutNine()])
    with capture_logs() as lines:
        epp.handle().close(EndCause.COMPLETED)
    (line,) = [each for each in lines if each["event"] == "endpoint chosen"]
    assert len(line["totals"]) == 5
    assert line["candidates"] == 80
    assert line["removed"] == {"nine": ["ns/9", "ns/19", "ns/29", "ns/39", "ns/49", "+3"]}


@pytest.mark.usefixtures("debug_level")
def test_a_single_endpoint_has_no_margin() -> None:
    epp = Epp([make_endpoint()])
    with capture_logs() as lines:
        epp.handle().close(EndCause.COMPLETED)
    (line,) = [each for each in lines if each["event"] == "endpoint chosen"]
    assert line["margin"] is None
    assert list(line["metrics_age_seconds"].values()) == [None]


@pytest.mark.usefixtures("debug_level")
def test_a_request_without_an_endpoint_has_a_line_as_well() -> None:
    epp = Epp(make_pool(), filters=[RefusingFilter()])
    with capture_logs() as lines, pytest.raises(AllFilteredError):
        epp.handle()
    (line,) = [each for each in lines if each["event"] == "no endpoint left"]
    assert (line["request_id"], line["profile"], line["candidates"]) == ("r-1", "default", 2)
    assert list(line["removed"].values()) == [["default/a", "default/b"]]


def test_nothing_is_made_below_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decider, "chosen_fields", None)
    monkeypatch.setattr(decider, "no_endpoint_fields", None)
    with capture_logs() as lines:
        Epp(make_pool()).handle().close(EndCause.COMPLETED)
    assert [line["event"] for line in lines] == ["request finished"]
