"""A recorded copy numbers its events, keeps the latest, and knows where a watch goes on."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kubernetes.api.events import Bookmark, Changed, Deleted, Failed
from epp.kubernetes.api.local_copy import LocalCopy
from epp.kubernetes.api.recorded_copy import RawDecoder, RawObject, RecordedCopy
from epp.kubernetes.api.resource import ObjectMeta


def thing(name: str, version: int | str, text: str = "") -> RawObject:
    meta = ObjectMeta(name=name, namespace="d", resource_version=str(version))
    return RawObject(meta, json.dumps({"name": name, "version": version, "text": text}).encode())


class Recorded:
    """A copy, and how often it has told of something."""

    def __init__(self, version: int | str = 10, **limits: int) -> None:
        self.notifications = 0
        self.copy = RecordedCopy(self._count, **limits)
        self.copy.replace_by(LocalCopy({("d", "a"): thing("a", 5)}, {}, str(version)))

    def lines(self, number: int) -> list[tuple[str, Any]] | None:
        """Return type and version of the events from a number on."""
        lines = self.copy.lines_from(number)
        if lines is None:
            return None
        events = [json.loads(line) for line in lines]
        return [
            (each["type"], each["object"].get("version") or each["object"]["metadata"])
            for each in events
        ]

    def since(self, version: int | str) -> list[tuple[str, Any]] | None:
        """Return the events after a version; None if it is gone."""
        number = self.copy.number_after(str(version))
        return None if number is None else self.lines(number)

    def _count(self) -> None:
        self.notifications += 1


def test_events_are_passed_on_in_order_from_any_version_since_the_list() -> None:
    recorded = Recorded(10)
    copy = recorded.copy
    copy.apply(Changed(thing("b", 12)))
    copy.apply(Changed(thing("a", 14)))
    copy.apply(Deleted(thing("b", 17)))
    all_events = [("ADDED", 12), ("MODIFIED", 14), ("DELETED", 17)]
    assert recorded.since(10) == all_events
    assert recorded.since(11) == all_events
    assert recorded.since(12) == all_events[1:]
    assert recorded.since(16) == all_events[2:]
    assert recorded.since(17) == []
    assert recorded.notifications == 4
    assert [key[1] for key in copy.objects] == ["a"]


@pytest.mark.parametrize("version", [9, 18, "", "x"])
def test_a_version_before_the_list_or_of_the_future_is_not_known(version: int | str) -> None:
    recorded = Recorded(10)
    recorded.copy.apply(Changed(thing("b", 17)))
    assert recorded.since(version) is None


def test_events_that_change_nothing_are_not_passed_on() -> None:
    recorded = Recorded(10)
    recorded.copy.apply(Changed(thing("a", 4)))
    recorded.copy.apply(Changed(thing("a", 5)))
    recorded.copy.apply(Deleted(thing("unknown", 12)))
    assert recorded.since(10) == []
    assert recorded.since(12) == []
    assert recorded.notifications == 1


def test_bookmarks_are_passed_on() -> None:
    recorded = Recorded(10)
    recorded.copy.advance("20")
    assert recorded.since(10) == [("BOOKMARK", {"resourceVersion": "20"})]
    assert recorded.since(20) == []


@pytest.mark.parametrize(
    "limits", [{"most_events": 3}, {"most_bytes": 3 * len(thing("n", 12).json)}]
)
def test_only_the_latest_events_are_kept(limits: dict[str, int]) -> None:
    recorded = Recorded(10, **limits)
    begin = recorded.copy.end
    for version in range(11, 16):
        recorded.copy.apply(Changed(thing("n", version)))
    assert recorded.lines(begin) is None
    assert recorded.since(11) is None
    assert recorded.since(12) == [("MODIFIED", 13), ("MODIFIED", 14), ("MODIFIED", 15)]
    assert recorded.lines(begin + 2) == recorded.since(12)


def test_after_a_new_list_every_watch_has_to_begin_anew() -> None:
    recorded = Recorded(10)
    recorded.copy.apply(Changed(thing("b", 12)))
    at_the_end = recorded.copy.end
    # After a restore of etcd, versions are lower.
    recorded.copy.replace_by(LocalCopy({("d", "c"): thing("c", 6)}, {}, "7"))
    assert recorded.lines(at_the_end) is None
    assert recorded.since(12) is None
    assert recorded.since(7) == []
    assert recorded.lines(recorded.copy.end) == []
    assert recorded.notifications == 3


def test_versions_that_are_no_numbers_are_known_if_they_are_the_same() -> None:
    recorded = Recorded("x")
    recorded.copy.apply(Changed(thing("b", "k")))
    recorded.copy.apply(Changed(thing("b", "c")))
    assert recorded.since("x") == [("ADDED", "k"), ("MODIFIED", "c")]
    assert recorded.since("k") == [("MODIFIED", "c")]
    assert recorded.since("c") == []
    assert recorded.since("z") is None


def test_objects_are_kept_as_they_came() -> None:
    decoder = RawDecoder()
    text = b'{"metadata": {"name":"a","resourceVersion":"3","uid":"u"}, "spec":{"x":[1, 2]}}'
    event = decoder.event(b'{"type":"MODIFIED","object":%b}' % text)
    assert isinstance(event, Changed)
    assert event.object.json == text
    assert event.object.metadata == ObjectMeta(name="a", resource_version="3", uid="u")
    assert isinstance(decoder.event(b'{"type":"DELETED","object":%b}' % text), Deleted)
    mark = decoder.event(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"4"}}}')
    assert isinstance(mark, Bookmark)
    failed = decoder.event(b'{"type":"ERROR","object":{"code":410}}')
    assert isinstance(failed, Failed)
    page = decoder.page(b'{"metadata":{"resourceVersion":"9","continue":"c"},"items":[%b]}' % text)
    assert [each.json for each in page.items] == [text]
    assert (page.resource_version, page.continue_token) == ("9", "c")
    assert decoder.page(b'{"metadata":{},"items":null}').items == []


def test_an_object_that_is_written_on_several_lines_becomes_one() -> None:
    page = RawDecoder().page(b'{"metadata":{},"items":[{\n "metadata": {\n"name": "a\\n"}\n}\n]}')
    assert [each.json for each in page.items] == [b'{"metadata":{"name":"a\\n"}}']


def test_what_is_no_object_is_refused() -> None:
    decoder = RawDecoder()
    with pytest.raises(msgspec.DecodeError):
        decoder.event(b'{"type":"ADDED","object":{"spec":{}}}')
    with pytest.raises(msgspec.DecodeError):
        decoder.page(b"<html>")


class Reader:
    """A watch that reads now and then, and may be cut off in between."""

    def __init__(self, copy: RecordedCopy) -> None:
        self.copy = copy
        self.mine = LocalCopy[RawObject]()
        self.number = -1
        self.begin()

    def begin(self) -> None:
        self.mine.replace_by(LocalCopy(dict(self.copy.objects), {}, self.copy.version))
        self.number = self.copy.end

    def resume(self) -> None:
        """Open another watch from the last version."""
        number = self.copy.number_after(self.mine.version)
        if number is None:
            self.begin()
        else:
            self.number = number

    def read(self) -> None:
        lines = self.copy.lines_from(self.number)
        if lines is None:
            self.begin()
            return
        for line in lines:
            self.number += 1
            event = RawDecoder().event(line)
            if isinstance(event, Bookmark):
                self.mine.advance(event.resource_version)
            else:
                assert isinstance(event, Changed | Deleted)
                self.mine.apply(event)


def whole(name: str, version: int) -> RawObject:
    meta = ObjectMeta(name=name, namespace="d", resource_version=str(version))
    return RawObject(meta, msgspec.json.encode({"metadata": meta}))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["change", "delete", "bookmark", "replace", "restore", "read", "resume"]),
        st.sampled_from("abc"),
        st.integers(1, 3),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 6))
def test_whoever_reads_or_resumes_at_any_time_ends_with_the_same_objects(
    steps: list[tuple[str, str, int]], most_events: int
) -> None:
    copy = RecordedCopy(lambda: None, most_events=most_events)
    version = 100
    copy.replace_by(LocalCopy({("d", "a"): whole("a", 90)}, {}, str(version)))
    reader = Reader(copy)
    for step, name, more in steps:
        version += more
        if step == "change":
            copy.apply(Changed(whole(name, version)))
        elif step == "delete":
            copy.apply(Deleted(whole(name, version)))
        elif step == "bookmark":
            copy.advance(str(version))
        elif step in {"replace", "restore"}:
            version -= 50 * (step == "restore")  # etcd came back with an older state
            copy.replace_by(LocalCopy({("d", name): whole(name, version)}, {}, str(version)))
            if step == "restore":
                reader.read()  # versions have another meaning now: only an open watch knows
        elif step == "read":
            reader.read()
        else:
            reader.resume()
    reader.read()
    assert reader.mine.objects == copy.objects
