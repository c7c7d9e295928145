"""The content of ``/debug/session``."""

import itertools
import sys
from typing import Any

import msgspec
import pytest
from flow_control.sessions.clusters import Bench, Plugin
from flow_control.shown import NOW, Waiting

from epp.flow_control.plugins import Share
from epp.flow_control.sessions import ExtensionPoints, Queue, RegistrationError, Session
from epp.flow_control.views.debug_page import MOST, session_page, session_pages
from epp.flow_control.views.session_page import BandLine, SessionPage, SessionPluginLine, ShareLine


def page(waiting: Waiting, points: ExtensionPoints | None = None) -> SessionPage:
    return session_page(waiting, points or ExtensionPoints(), [], NOW)


def order(band: BandLine) -> list[tuple[str, int]]:
    return [(each.request_id, each.place) for each in band.requests]


def test_bands_flows_and_requests_are_reported_in_order() -> None:
    waiting = Waiting()
    high, low = waiting.band(5), waiting.band(-1)
    waiting.wait(high, "alice", "a2", waited=2.0)
    waiting.wait(high, "bob", "b1", waited=9.0, ttl=10.0, size=7, model="qwen")
    waiting.wait(high, "alice", "a1", waited=3.0)
    waiting.wait(low, "carol", "c1", waited=4.0, ttl=1.0)
    waiting.why["a1"] = ["endpoint x has no room", "endpoint y is for spot"]
    shown = page(waiting)
    assert (shown.waiting, shown.size_bytes) == (4, 37)
    first, second = shown.bands
    assert (first.priority, first.waiting, first.size_bytes) == (5, 3, 27)
    assert (first.max_requests, first.max_bytes) == (5000, 1_000_000_000)
    assert (second.priority, second.waiting) == (-1, 1)
    assert order(first) == [("a1", 1), ("b1", 1), ("a2", 2)]
    assert order(second) == [("c1", 1)]
    alice, bob = first.flows
    assert (alice.flow, alice.waiting, alice.size_bytes) == ("alice", 2, 20)
    assert alice.head_waited_seconds == 3.0
    assert alice.reasons == ["endpoint x has no room", "endpoint y is for spot"]
    assert (bob.flow, bob.reasons) == ("bob", [])
    b1 = first.requests[1]
    assert (b1.flow, b1.priority, b1.model, b1.size_bytes) == ("bob", 5, "qwen", 7)
    assert (b1.waited_seconds, b1.remaining_seconds) == (9.0, 1.0)
    assert first.requests[0].remaining_seconds is None
    assert second.requests[0].remaining_seconds == 0.0, "it is late, not in the past"


def test_who_waits_no_more_is_not_reported() -> None:
    waiting = Waiting()
    band = waiting.band(0)
    gone = waiting.wait(band, "a", "gone", waited=5.0)
    waiting.wait(band, "a", "there")
    gone.is_waiting = gone.is_ready = False
    assert order(page(waiting).bands[0]) == [("there", 1)]


def test_parked_requests_have_their_reasons_and_no_place() -> None:
    waiting = Waiting()
    band = waiting.band(0)
    waiting.wait(band, "a", "picky", parked=True)
    waiting.why["picky"] = ["no endpoint has the adapter"]
    shown = page(waiting)
    (parked,) = shown.parked
    assert (parked.request_id, parked.place, parked.tries) == ("picky", 0, 1)
    assert parked.reasons == ["no endpoint has the adapter"]
    (line,) = shown.bands
    assert (line.waiting, order(line), line.more_requests) == (1, [], 0)
    assert (line.flows[0].head_waited_seconds, line.flows[0].reasons) == (None, [])


@pytest.mark.parametrize(
    ("saturation", "ceilings", "blocked", "expected"),
    [
        pytest.param({"": 0.8}, {0: 0.9}, "", "", id="below its ceiling"),
        pytest.param({}, {}, "", "", id="nothing known"),
        pytest.param(
            {"prefill": 0.9, "decode": 0.2},
            {0: 0.9},
            "",
            "the saturation is 0.9, not below the ceiling 0.9",
            id="the fullest stage is at the ceiling",
        ),
        pytest.param(
            {"": float("nan")},
            {0: 1.0},
            "",
            "the saturation is nan, not below the ceiling 1",
            id="a saturation that is no number",
        ),
        pytest.param({"": 0.1}, {0: 1.0}, "no endpoints", "no endpoints", id="all is blocked"),
    ],
)
def test_why_a_band_is_blocked(
    saturation: dict[str, float], ceilings: dict[int, float], blocked: str, expected: str
) -> None:
    waiting = Waiting()
    waiting.wait(waiting.band(0), "a", "1")
    waiting.saturation, waiting.ceilings, waiting.blocked = saturation, ceilings, blocked
    shown = page(waiting)
    assert shown.bands[0].blocked == expected
    assert shown.bands[0].ceiling == ceilings.get(0)
    assert shown.blocked == blocked
    assert list(shown.saturation) == list(saturation)


def test_a_band_in_which_nobody_waits_is_not_called_blocked() -> None:
    waiting = Waiting()
    waiting.band(10)
    waiting.wait(waiting.band(0), "a", "1")
    waiting.saturation, waiting.ceilings, waiting.blocked = {"": 1.0}, {10: 1.0, 0: 1.0}, "full"
    assert [band.blocked for band in page(waiting).bands] == ["", "full"]


def test_of_a_crowd_the_first_are_reported_and_the_rest_is_counted() -> None:
    waiting = Waiting()
    band = waiting.band(0)
    for number in range(MOST + 5):
        waiting.wait(band, f"flow {number}", f"head {number}")
        waiting.wait(band, f"flow {number}", f"parked {number}", parked=True)
    (line,) = page(waiting).bands
    assert order(line) == [(f"head {number}", 1) for number in range(MOST)]
    assert line.more_requests == 5
    assert (len(line.flows), line.more_flows) == (MOST, 5)
    shown = page(waiting)
    assert (len(shown.parked), shown.more_parked) == (MOST, 5)


def test_a_flood_in_one_flow_hides_no_other() -> None:
    waiting = Waiting()
    band = waiting.band(0)
    for number in range(3 * MOST):
        waiting.wait(band, "flood", f"flood {number}", waited=1000.0 - number)
    waiting.wait(band, "late", "late")
    (line,) = page(waiting).bands
    assert order(line)[:3] == [("flood 0", 1), ("late", 1), ("flood 1", 2)]
    assert (len(line.requests), line.more_requests) == (MOST, 2 * MOST + 1)


def test_shares_are_those_of_the_fairness_policy_and_of_session_plugins() -> None:
    waiting = Waiting()
    waiting.wait(waiting.band(0), "a", "1")
    waiting.shares_by_flow["a"] = {"tokens": Share(7.0, 5.0, 6.0), "requests": Share(1.0)}
    points = ExtensionPoints()
    points.add_queue_amount_fn("deserved", lambda queue: 2.0)
    points.add_queue_amount_fn("allocated", lambda queue: float(len(queue.name)))
    assert page(waiting, points).bands[0].flows[0].shares == [
        ShareLine(resource="tokens", used=7.0, deserved=5.0, share=6.0),
        ShareLine(resource="requests", used=1.0),
        ShareLine(resource="size", used=float(len("priority 0/a")), deserved=2.0),
    ]


def test_an_idle_flow_has_shares_and_no_head() -> None:
    waiting = Waiting()
    band = waiting.band(0)
    queued = waiting.wait(band, "a", "1")
    queued.is_waiting = queued.is_ready = False
    queued.queue.waiting = 0
    waiting.shares_by_flow["a"] = {"tokens": Share(7.0)}
    (flow,) = page(waiting).bands[0].flows
    assert (flow.waiting, flow.head_waited_seconds) == (0, None)
    assert flow.shares == [ShareLine(resource="tokens", used=7.0)]


def test_plugins_that_fail_to_report_cost_their_own_figures_only() -> None:
    class Broken(Waiting):
        def shares(self, flow: object) -> dict[str, Share]:
            raise LookupError("half \udc80")

    waiting = Broken()
    band = waiting.band(3)
    waiting.wait(band, "a", "1")
    waiting.wait(band, "b", "2")
    points = ExtensionPoints()
    points.registering = "theirs"

    def fail(queue: Queue) -> float:
        raise ValueError("no idea")

    points.add_queue_amount_fn("deserved", fail)
    points.add_queue_amount_fn("allocated", lambda queue: 1.0)
    shown = page(waiting, points)
    assert shown.faults == [
        r"the fairness policy of priority 3 failed in shares: LookupError: half \udc80",
        "session plugin 'theirs' failed in 'deserved': ValueError: no idea",
    ]
    assert [flow.shares for flow in shown.bands[0].flows] == [
        [ShareLine(resource="size", used=1.0)]
    ] * 2


def test_an_amount_that_is_no_number_is_a_fault_and_not_on_the_page() -> None:
    class Wordy(Waiting):
        def shares(self, flow: object) -> dict[str, Share]:
            return {"tokens": Share("seven")}  # type: ignore[arg-type]

    waiting = Wordy()
    waiting.wait(waiting.band(3), "a", "1")
    points = ExtensionPoints()
    points.registering = "theirs"
    points.add_queue_amount_fn("deserved", lambda _: [1.0])  # type: ignore[arg-type, return-value]
    points.add_queue_amount_fn("allocated", lambda queue: sys.exit("no idea"))
    shown = page(waiting, points)
    assert shown.faults == [
        "the fairness policy of priority 3 failed in shares: TypeError: 'seven' is not a number",
        "session plugin 'theirs' failed in 'deserved': TypeError: [1.0] is not a number",
        "session plugin 'theirs' failed in 'allocated': SystemExit: no idea",
    ]
    assert [flow.shares for flow in shown.bands[0].flows] == [[]]


def test_prompts_and_headers_are_not_in_it_and_any_text_is() -> None:
    waiting = Waiting()
    band = waiting.band(0)
    waiting.wait(band, "half \ud800", "\x1b[31m", model="ü", parked=True)
    waiting.wait(band, "half \ud800", "2", model="half \udfff")
    waiting.why["2"] = ["half \udc80"]
    text = msgspec.json.encode(page(waiting))
    assert b"secret" not in text
    document: dict[str, Any] = msgspec.json.decode(text)
    assert document["parked"][0]["request_id"] == r"\x1b[31m"
    assert document["bands"][0]["flows"][0]["flow"] == r"half \ud800"
    assert document["bands"][0]["flows"][0]["reasons"] == [r"half \udc80"]
    assert msgspec.json.decode(text, type=SessionPage) == page(waiting)


def test_pages_of_session_plugins_are_those_of_the_newest_session() -> None:
    count = itertools.count(1)

    def register(ssn: Session) -> None:
        run = next(count)
        ssn.add_http_handler("/usage/now/", lambda: run)

    bench = Bench(
        Plugin(register, name="usage"),
        Plugin(lambda ssn: None, name="quiet"),
    )
    points = bench.dispatcher.points

    def pages() -> dict[str, Any]:
        return {
            path: (made.owner, made.document())
            for path, made in session_pages(Waiting(), points, ["usage", "quiet"], bool).items()
        }

    assert list(pages()) == ["session"]
    bench.run()
    bench.run()
    found = pages()
    assert found["session/usage/now"] == ("session plugin 'usage'", 2)
    assert found["session"][0] == "the endpoint picker"
    assert found["session"][1].plugins == [
        SessionPluginLine(name="usage", pages=["usage/now"]),
        SessionPluginLine(name="quiet", pages=[]),
    ]


@pytest.mark.parametrize("path", ["", "/", "//"])
def test_a_page_without_a_path_is_refused(path: str) -> None:
    points = ExtensionPoints()
    points.registering = "usage"
    with pytest.raises(RegistrationError, match=r"'usage' cannot provide the path .*page below"):
        points.add_http_handler(path, dict)
