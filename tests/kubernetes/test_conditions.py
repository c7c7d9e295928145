"""When a status differs from the desired one, and how it is patched."""

from dataclasses import replace
from typing import Any

import pytest

from epp.kubernetes.conditions import Condition, ObjectStatus

from .fake_api import GADGETS

GOOD = Condition("Accepted", True, "Accepted", "in use")
BAD = Condition("Accepted", False, "Invalid", "no priority")
THEIRS = {"type": "Theirs", "status": "True", "reason": "X", "message": "", "more": [1]}
NOON, LATER = 1_796_040_000.0, 1_796_043_600.0
NOON_TEXT, LATER_TEXT = "2026-11-30T12:00:00Z", "2026-11-30T13:00:00Z"
WRITTEN = {
    "type": "Accepted",
    "status": "True",
    "reason": "Accepted",
    "message": "in use",
    "observedGeneration": 3,
    "lastTransitionTime": NOON_TEXT,
}


def make_status(found: Any, *wanted: Condition) -> ObjectStatus:
    return ObjectStatus(
        resource=GADGETS,
        namespace="d",
        name="a",
        uid="u",
        resource_version="7",
        generation=3,
        wanted=wanted,
        found=found,
    )


def conditions(status: ObjectStatus, now: float) -> list[dict[str, Any]]:
    patch = status.patch(now)
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert list(patch["status"]) == ["conditions"]
    found: list[dict[str, Any]] = patch["status"]["conditions"]
    return found


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(None, id="no status"),
        pytest.param({}, id="an empty status"),
        pytest.param("odd", id="a text"),
        pytest.param({"conditions": "odd"}, id="conditions that are no list"),
        pytest.param({"conditions": ["odd"]}, id="a condition that is no object"),
    ],
)
def test_a_status_without_conditions_gets_them(found: Any) -> None:
    status = make_status(found, GOOD)
    assert not status.is_current
    assert conditions(status, NOON) == [WRITTEN]


def test_what_is_written_is_current() -> None:
    status = make_status({"conditions": [WRITTEN]}, GOOD)
    assert status.is_current
    assert not replace(status, wanted=(BAD,)).is_current
    assert not replace(status, generation=4).is_current
    assert not replace(status, wanted=(GOOD, replace(GOOD, type="ResolvedRefs"))).is_current


def test_fields_and_conditions_of_others_are_kept_and_do_not_count() -> None:
    more = WRITTEN | {"more": "by a webhook"}
    status = make_status({"conditions": [THEIRS, more]}, GOOD)
    assert status.is_current
    changed = conditions(replace(status, wanted=(BAD,)), LATER)
    assert changed[0] == THEIRS
    assert changed[1]["more"] == "by a webhook"


def test_the_time_of_a_condition_changes_with_its_status_alone() -> None:
    found = {"conditions": [WRITTEN]}
    worded = make_status(found, replace(GOOD, reason="Partly", message="but"))
    assert conditions(worded, LATER)[0]["lastTransitionTime"] == NOON_TEXT
    refused = conditions(make_status(found, BAD), LATER)[0]
    assert (refused["status"], refused["lastTransitionTime"]) == ("False", LATER_TEXT)
