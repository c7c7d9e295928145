"""The page of log levels, and the call that changes them."""

import asyncio
import os
from collections.abc import Mapping
from http import HTTPStatus

import pytest
from structlog.testing import capture_logs

from epp.observability import AdminError, LogLevelCalls
from epp.observability.log_levels import LogLevels

pytestmark = pytest.mark.looptime


def calls(levels: LogLevels) -> LogLevelCalls:
    return LogLevelCalls(levels, clock=asyncio.get_running_loop().time)


async def test_a_change_ends_after_its_time() -> None:
    levels = LogLevels()
    made = calls(levels)
    with capture_logs() as lines:
        page = made.set_level({"level": "debug", "seconds": "60"})
        assert (page.level, page.usual_level, page.process_id) == ("debug", "info", os.getpid())
        assert page.change is not None
        assert (page.change.level, page.change.returns_in_seconds) == ("debug", 60.0)
        await asyncio.sleep(59)
        later = made.page().change
        assert later is not None
        assert later.returns_in_seconds == pytest.approx(1.0)
        assert later.returns_at == page.change.returns_at
        await asyncio.sleep(2)
    assert (levels.of("epp"), made.page().change) == ("info", None)
    assert [(line["event"], line["new_level"]) for line in lines] == [
        ("log level changed", "debug"),
        ("log level returned", "info"),
    ]


async def test_a_repeated_change_replaces_level_and_time() -> None:
    levels = LogLevels()
    made = calls(levels)
    made.set_level({"level": "debug", "seconds": "10"})
    made.set_level({"level": "error", "seconds": "3600"})
    await asyncio.sleep(20)
    assert levels.of("epp") == "error"
    await asyncio.sleep(3600)
    assert levels.of("epp") == "info"


async def test_without_seconds_it_lasts_five_minutes() -> None:
    change = calls(LogLevels()).set_level({"level": "debug"}).change
    assert change is not None
    assert change.returns_in_seconds == 300.0


async def test_a_package_has_a_level_and_a_time_of_its_own() -> None:
    levels = LogLevels()
    made = calls(levels)
    made.set_level({"level": "debug", "seconds": "10"})
    page = made.set_level({"level": "error", "seconds": "30", "package": "epp.observability"})
    assert [(name, each.level) for name, each in page.packages.items()] == [
        ("epp.observability", "error")
    ]
    assert (levels.of("epp.observability.metrics"), levels.of("epp.cli")) == ("error", "debug")
    await asyncio.sleep(20)
    assert (levels.of("epp.observability.metrics"), levels.of("epp.cli")) == ("error", "info")
    made.set_level({"undo": "true", "package": "epp.observability"})
    assert levels.of("epp.observability.metrics") == "info"


async def test_undo_without_a_package_ends_every_change() -> None:
    levels = LogLevels()
    made = calls(levels)
    made.set_level({"level": "debug"})
    made.set_level({"level": "error", "package": "epp.observability"})
    page = made.set_level({"undo": "true"})
    assert (page.level, page.change, page.packages) == ("info", None, {})
    assert made.set_level({"undo": "true"}) == page


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "level is missing; give one of debug, info, warning, error"),
        ({"level": "trace"}, "level is 'trace', not one of debug, info, warning, error"),
        ({"level": "debug", "seconds": "0"}, "seconds is '0', not a positive number of at most"),
        ({"level": "debug", "seconds": "-1"}, "seconds is '-1'"),
        ({"level": "debug", "seconds": "3601"}, "at most 3600; for longer, restart with"),
        ({"level": "debug", "seconds": "nan"}, "seconds is 'nan'"),
        ({"level": "debug", "seconds": "1h"}, "seconds is '1h'"),
        ({"level": "debug", "package": "epp.none"}, "there is no package 'epp.none'; a logger"),
        ({"level": "debug", "undo": "true"}, "undo=true excludes level and seconds"),
        ({"undo": "yes"}, "undo is 'yes', not true or false"),
        ({"for": "60"}, "no parameter 'for'; there are level, package, seconds, undo"),
    ],
    ids=str,
)
async def test_a_bad_value_is_refused_and_changes_nothing(
    given: Mapping[str, str], text: str
) -> None:
    levels = LogLevels()
    made = calls(levels)
    with pytest.raises(AdminError) as caught:
        made.set_level(given)
    assert caught.value.status == HTTPStatus.BAD_REQUEST
    assert text in str(caught.value)
    assert levels.of("epp") == "info"
    assert made.page().change is None
