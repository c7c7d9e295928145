"""Events change the local copy only if they are newer than what it has."""

import pytest

from epp.kubernetes.api.events import Changed, Deleted, ListPage, Undecodable
from epp.kubernetes.api.local_copy import LocalCopy

from .followed import Thing, ThingMeta


def make_thing(version: str, value: str = "", name: str = "a") -> Thing:
    return Thing(ThingMeta(name=name, namespace="d", resource_version=version), {"value": value})


def make_copy() -> LocalCopy[Thing]:
    copy = LocalCopy[Thing]()
    copy.apply(Changed(make_thing("100", "now")))
    return copy


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(Changed(make_thing("100", "now")), id="the same once more"),
        pytest.param(Changed(make_thing("99", "before")), id="an older state"),
        pytest.param(Deleted(make_thing("99", "before")), id="an older deletion"),
        pytest.param(Deleted(make_thing("101", name="b")), id="a deletion of an unknown object"),
        pytest.param(
            Undecodable(make_thing("99", "before"), ""),
            id="an older state, undecodable",
        ),
    ],
)
def test_an_event_that_is_old_or_repeated_changes_nothing(
    event: Changed[Thing] | Deleted[Thing] | Undecodable,
) -> None:
    copy = make_copy()
    assert not copy.apply(event)
    assert copy.objects == {("d", "a"): make_thing("100", "now")}
    assert int(copy.version) >= 100
    assert not copy.undecodable


def test_a_newer_event_changes_the_copy() -> None:
    copy = make_copy()
    assert copy.apply(Changed(make_thing("1000", "later")))
    assert copy.objects["d", "a"].data == {"value": "later"}
    assert copy.apply(Deleted(make_thing("1001")))
    assert not copy.objects
    assert copy.version == "1001"


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    copy = make_copy()
    assert copy.apply(Changed(make_thing("x", "later")))
    assert copy.apply(Changed(make_thing("b", "last")))
    assert copy.version == "b"


def test_a_fresh_state_replaces_all_but_keeps_equal_instances() -> None:
    copy = make_copy()
    copy.apply(Changed(make_thing("101", name="gone")))
    kept = copy.objects["d", "a"]
    fresh = LocalCopy[Thing]()
    fresh.add_page(ListPage([make_thing("100", "now")], [], "50", "more"))
    fresh.add_page(ListPage([make_thing("40", name="new")], [], "50", ""))
    assert copy.replace_by(fresh)
    assert set(copy.objects) == {("d", "a"), ("d", "new")}
    assert copy.objects["d", "a"] is kept
    assert copy.version == "50"  # lower, as after a restore of etcd
    again = LocalCopy[Thing](dict(copy.objects), {}, "60")
    assert not copy.replace_by(again)
    assert copy.version == "60"
