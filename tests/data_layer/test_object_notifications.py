"""Listeners get the objects of their kind, across reloads and from all sources."""

from dataclasses import dataclass
from typing import Any

import pytest
from log_watch import Logs

from epp.data_layer.object_notifications import ObjectNotifications
from epp.data_layer.plugins import ObjectSource
from epp.scheduling import Plugin
from epp.testing import make_plugin

from .object_feed import GADGET, POD, EvenObjects, Feed, ObjectDiary, changed, deleted


@dataclass(frozen=True)
class Binding:
    source: Plugin
    extractors: tuple[Plugin, ...]


def diary(name: str = "diary", kind: str = "Gadget", *fields: str) -> ObjectDiary:
    core = {"group": "", "version": "v1"} if kind == "Pod" else {}
    parameters: dict[str, Any] = {"kind": kind, "fields": fields or ("spec",), **core}
    return make_plugin(ObjectDiary, parameters, name=name)


def test_every_listener_hears_of_the_objects_of_its_kind() -> None:
    feed = Feed()
    gadgets, more, pods = diary(), diary("more"), diary("pods", "Pod")
    ObjectNotifications(feed).use([gadgets, more, pods], [])
    feed.add(changed("a"), changed("p", POD), deleted("a"))
    assert gadgets.heard == more.heard == ["+a", "-a"]
    assert pods.heard == ["+p"]


def test_a_kind_is_followed_once_with_the_fields_of_all_its_listeners() -> None:
    feed = Feed()
    silent = diary("silent")
    silent.object_kind = None
    listeners = [
        diary("a", "Pod", "spec.nodeName"),
        diary("b", "Pod", "metadata.labels", "status"),
        diary("c"),
        silent,
    ]
    ObjectNotifications(feed).use(listeners, [])
    assert feed.wanted == {
        POD: {"spec.nodeName", "metadata.labels", "status"},
        GADGET: {"spec"},
    }


def test_a_reload_notifies_new_listeners_of_what_is_there_and_others_of_nothing_again() -> None:
    feed = Feed()
    notifications = ObjectNotifications(feed)
    kept, dropped, new = diary(), diary("dropped", "Pod"), diary("new")
    notifications.use([kept, dropped], [])
    feed.add(changed("a"), changed("p", POD))
    notifications.use([kept, new], [])
    assert feed.wanted == {GADGET: {"spec"}}
    feed.add(changed("b"), changed("q", POD))
    assert (kept.heard, new.heard, dropped.heard) == (["+a", "+b"], ["+a", "+b"], ["+p"])


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_source_that_lists_a_listener_may_keep_events_back(is_listed: bool) -> None:
    feed = Feed()
    source, listener = make_plugin(EvenObjects), diary()
    feed.objects[GADGET] = [changed("early", size=3)]
    bindings = [Binding(source, (listener,) if is_listed else ())]
    ObjectNotifications(feed).use([listener], bindings)
    feed.add(changed("two", size=2), changed("three", size=3), deleted("four", size=4))
    wanted = ["+two", "-four"] if is_listed else ["+early", "+two", "+three", "-four"]
    assert listener.heard == wanted


def test_the_first_of_two_sources_that_list_a_listener_applies() -> None:
    feed = Feed()

    class All(EvenObjects):
        def notify_object(self, event: Any) -> Any:
            return event

    listener = diary()
    sources: list[ObjectSource] = [make_plugin(EvenObjects), make_plugin(All)]
    ObjectNotifications(feed).use([listener], [Binding(each, (listener,)) for each in sources])
    feed.add(changed("two", size=2), changed("three", size=3))
    assert listener.heard == ["+two"]


def test_a_failure_is_logged_and_others_are_notified(logs: Logs) -> None:
    feed = Feed()
    listed, other = diary("listed"), diary("other")
    bindings = [Binding(make_plugin(EvenObjects), (listed,))]
    ObjectNotifications(feed).use([listed, other], bindings)
    feed.add(changed("sizeless"), changed("two", size=2))
    assert (listed.heard, other.heard) == (["+two"], ["+sizeless", "+two"])
    (line,) = logs.entries
    assert line["event"] == "object listener failed"
    assert (line["listener"], line["object"]) == ("listed", "d/sizeless")
    assert line["kind"] == "Gadget (example.com/v1alpha1)"


def test_without_a_feed_each_plugin_is_reported_once_as_bad_as_it_is(logs: Logs) -> None:
    class Modest(ObjectDiary):
        needs_objects = False

    needy, modest, silent = diary("needy"), make_plugin(Modest, name="modest"), diary("silent")
    silent.object_kind = None
    source = make_plugin(EvenObjects, name="source")
    notifications = ObjectNotifications(None)
    for _ in range(2):
        notifications.use([needy, modest, silent], [Binding(source, (needy,))])
    notifications.use([needy, diary("new", "Pod")], [])
    event = "plugin gets no Kubernetes objects, as the endpoints are not from that API"
    assert [(each["log_level"], each["plugin"]) for each in logs.entries] == [
        ("warning", "source"),
        ("warning", "needy"),
        ("info", "modest"),
        ("warning", "new"),
    ]
    assert {each["event"] for each in logs.entries} == {event}
    assert logs.entries[-1]["kind"] == "Pod (v1)"
