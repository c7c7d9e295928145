"""The memory account of undecided requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc import ExtProcSettings
from epp.ext_proc.held_bytes import MAX_READING, HeldBytes
from epp.request_control import RoutedRequest
from tools.harness.ext_proc import (
    ADAPTIVE,
    FULL_DUPLEX,
    LEAN,
    POST,
    A,
    Envoy,
    Modes,
    assert_routes,
    error_headers,
)
from tools.harness.held import PatientEnvoy
from tools.harness.request_control import BODY, Epp, Policies, make_pool

pytestmark = pytest.mark.usefixtures("wire")

SMALL = ExtProcSettings(max_body_bytes=400, max_held_bytes=800)


def is_paused(envoy: Envoy) -> bool:
    return envoy.line.recorder.is_paused


def post(*, source: str = "", objective: str = "") -> dict[str, str]:
    """Return the headers of a request from ``source`` with an objective."""
    given = {"x-forwarded-for": source, "x-llm-d-inference-objective": objective}
    return dict(POST) | {name: value for name, value in given.items() if value}


def begin(
    epp: Epp, size: int, first: Envoy | None = None, modes: Modes = LEAN, **facts: str
) -> Envoy:
    """Send headers and ``size`` bytes of an incomplete body."""
    service = None if first is None else first.service
    envoy = Envoy(epp, modes, service, settings=SMALL)
    envoy.request_headers(post(**facts))
    envoy.request_body(b" " * size, end=False)
    return envoy


def waiting(epp: Epp, size: int, first: Envoy | None = None, **facts: str) -> PatientEnvoy:
    """Send a complete request of ``size`` bytes, whose decision stays pending."""
    service = None if first is None else first.service
    envoy = PatientEnvoy(epp, LEAN, service=service, settings=SMALL)
    envoy.request_headers(post(**facts))
    envoy.request_body(b" " * size)
    return envoy


@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])
def test_a_body_is_held_until_its_request_is_decided(modes: Modes) -> None:
    epp = Epp(make_pool())
    envoy = begin(epp, 100, modes=modes)
    assert envoy.service.held.used_bytes == 100
    envoy.request_body(BODY)
    assert envoy.service.held.used_bytes == 0
    envoy.response_headers()
    envoy.reset()
    assert envoy.service.held.used_bytes == 0


def test_a_body_is_held_while_its_request_waits_for_its_decision() -> None:
    epp = Epp(make_pool())
    envoy = PatientEnvoy(epp)
    envoy.post()
    assert envoy.service.held.used_bytes == len(BODY)
    envoy.wire.call(envoy.held.decide)
    assert envoy.service.held.used_bytes == 0


@pytest.mark.parametrize("modes", [LEAN, ADAPTIVE, FULL_DUPLEX])
def test_a_rewritten_body_is_released_with_the_original(modes: Modes) -> None:
    epp = Epp(make_pool(), policies=Policies(targets={"llama": "alpaca"}))
    exchanges: list[RoutedRequest] = []
    envoy = PatientEnvoy(epp, modes, kind=None, change=exchanges.append)
    replies = envoy.post()
    assert b"alpaca" in b"".join(each.SerializeToString() for each in replies)
    (exchange,) = exchanges
    assert (exchange.body, exchange.request.prompt) == (b"", b"")
    assert exchange.is_renamed


# --- long headers -------------------------------------------------------------------------------

LONG_HEADER = "v" * 5_000
ROOM = ExtProcSettings(max_body_bytes=400, max_held_bytes=8_000)


def long_headers(epp: Epp, modes: Modes = LEAN, first: Envoy | None = None) -> Envoy:
    """Send the long headers of a request with a body."""
    service = None if first is None else first.service
    envoy = Envoy(epp, modes, service, settings=ROOM)
    envoy.request_headers(dict(POST) | {"x-long": LONG_HEADER})
    return envoy


@pytest.mark.parametrize("modes", [LEAN, ADAPTIVE, FULL_DUPLEX])
def test_long_headers_are_held_until_their_request_is_decided(modes: Modes) -> None:
    """4000 requests with 48 KB of headers and no end of a body took 256 MB that nobody counted."""
    envoy = long_headers(Epp(make_pool()), modes)
    held = envoy.service.held
    assert 5_000 < held.used_bytes < 5_500
    envoy.request_body(BODY)
    assert held.used_bytes == 0
    envoy.response_headers()
    envoy.reset()
    assert held.used_bytes == 0


def test_long_headers_before_trailers_alone_are_released() -> None:
    envoy = long_headers(Epp(make_pool(), policies=Policies()))
    envoy.request_trailers()
    assert envoy.service.held.used_bytes == 0


def test_long_headers_are_released_when_the_client_disconnects() -> None:
    envoy = long_headers(Epp(make_pool()))
    envoy.reset()
    assert envoy.service.held.used_bytes == 0


def test_long_headers_are_evicted_for_others() -> None:
    epp = Epp(make_pool())
    first = long_headers(epp)
    epp.clock.now += 3
    second = long_headers(epp, first=first)
    assert (first.statuses, second.statuses) == ([503], [])
    assert 5_000 < first.service.held.used_bytes < 5_500


def test_long_headers_without_room_are_refused() -> None:
    epp = Epp(make_pool())
    first = PatientEnvoy(epp, LEAN, settings=ROOM)
    first.request_headers(dict(POST) | {"x-long": LONG_HEADER})
    first.request_body(BODY)
    second = long_headers(epp, first=first)
    assert second.statuses == [503]
    assert second.finished == [(0, "")]
    first.reset()
    assert first.service.held.used_bytes == 0


def test_a_body_is_released_when_the_client_disconnects() -> None:
    envoy = begin(Epp(make_pool()), 100)
    envoy.reset()
    assert envoy.service.held.used_bytes == 0


def test_beyond_the_limit_a_request_is_refused_if_no_body_can_be_evicted() -> None:
    epp = Epp(make_pool())
    first = waiting(epp, 400)
    waiting(epp, 300, first)
    surplus = waiting(epp, 21, first)
    (reply,) = surplus.replies
    assert reply.immediate_response.status.code == 503
    headers = error_headers(reply.immediate_response)
    assert headers["retry-after"] == "1"
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-held-bytes"
    assert b"hold 700 bytes already" in reply.immediate_response.body
    assert surplus.finished == [(0, "")]
    assert epp.value("request_limit_exceeded_total", limit="held-bytes") == 1
    assert first.service.held.used_bytes == 700


# --- who gives way ------------------------------------------------------------------------------


def test_a_large_stalled_body_is_evicted_for_others() -> None:
    """Nine bodies of 60 MB that were never finished blocked every other request forever."""
    epp = Epp(make_pool())
    first = begin(epp, 390)
    second = begin(epp, 300, first)
    epp.clock.now += 3
    newcomer = Envoy(epp, LEAN, first.service)
    newcomer.request_headers()
    assert_routes(newcomer.request_body(BODY)[0], "request_headers", A)
    assert first.statuses == [503]
    assert b"memory is short" in first.replies[0].immediate_response.body
    assert second.statuses == []
    assert first.service.held.used_bytes == 300
    assert epp.value("request_limit_exceeded_total", limit="held-bytes-evicted") == 1


def test_the_body_with_the_most_byte_seconds_is_evicted() -> None:
    epp = Epp(make_pool())
    old = begin(epp, 300)
    epp.clock.now += 9
    new = begin(epp, 390, old)
    begin(epp, 30, old)
    assert (old.statuses, new.statuses) == ([503], []), "300 x 10 s are more than 390 x 1 s"


def test_a_body_of_the_source_that_holds_most_is_evicted() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 250, source="10.0.0.9")
    other = begin(epp, 300, first, source="10.0.0.7")
    begin(epp, 100, first, source="10.0.0.9")
    begin(epp, 60, first, source="10.0.0.5, 10.0.0.8")
    assert (first.statuses, other.statuses) == ([503], [])


def test_no_body_is_evicted_for_a_source_that_holds_more() -> None:
    epp = Epp(make_pool())
    first = waiting(epp, 390, source="10.0.0.9")
    small = begin(epp, 300, first, source="10.0.0.7")
    again = begin(epp, 20, first, source="10.0.0.9")
    assert (small.statuses, again.statuses) == ([], [503])


def test_a_body_is_refused_if_only_itself_could_be_evicted() -> None:
    epp = Epp(make_pool())
    first = waiting(epp, 390)
    grown = begin(epp, 290, first)
    grown.request_body(b" " * 30, end=False)
    assert grown.statuses == [503]
    assert first.service.held.used_bytes == 390


def test_the_last_eighth_is_reserved_for_priorities_above_0() -> None:
    epp = Epp(make_pool(), policies=Policies(priorities={"critical": 10}))
    first = waiting(epp, 400)
    waiting(epp, 300, first)
    assert waiting(epp, 21, first).statuses == [503]
    critical = waiting(epp, 90, first, objective="critical")
    assert critical.statuses == []
    assert first.service.held.used_bytes == 790
    assert waiting(epp, 20, first, objective="critical").statuses == [503]


def test_a_critical_body_is_evicted_only_for_critical_ones() -> None:
    epp = Epp(make_pool(), policies=Policies(priorities={"critical": 10}))
    critical = begin(epp, 400, objective="critical")
    other = begin(epp, 290, critical)
    epp.clock.now += 10
    third = begin(epp, 20, critical)
    assert (critical.statuses, other.statuses, third.statuses) == ([], [503], [])
    begin(epp, 390, critical, objective="critical")
    assert critical.statuses == [503]


def test_a_search_without_a_result_is_not_repeated_at_once() -> None:
    """A search through all streams for each request of a flood would block the event loop."""
    looked = 0

    def holders() -> list[Holder]:
        nonlocal looked
        looked += 1
        return []

    now = 0.0
    held = HeldBytes(800, holders, lambda: now)
    held.used_bytes = 750
    holder = Holder(1)
    assert [held.has_room_for(holder) for _ in range(100)] == [False] * 100
    assert looked == 1
    now = 1.0
    assert not held.has_room_for(holder)
    assert looked == 2


# --- who waits ----------------------------------------------------------------------------------


def test_a_body_above_its_own_limit_is_refused_with_413() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 400)
    surplus = begin(epp, 401, first)
    assert surplus.statuses == [413]


def test_all_but_a_few_bodies_wait_when_memory_is_short() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 300)
    others = [begin(epp, 10, first) for _ in range(MAX_READING + 1)]
    last = begin(epp, 280, first)
    assert is_paused(last)
    for each in others:
        each.request_body(b" ", end=False)
    assert [is_paused(each) for each in others] == [True] * 2 + [False] * 3
    first.request_body(b"", end=True)  # refused, as no parser reads blanks; what counts is its end
    assert [is_paused(each) for each in [*others, last]] == [False, True] + [False] * 4
    others[0].request_body(BODY)
    assert_routes(others[0].replies[0], "request_headers", A)
    assert not is_paused(others[1])


# grpcio reads nothing at all of a stream that is to wait.
@pytest.mark.parametrize("wire", ["direct", "http2"], indirect=True)
def test_a_waiting_body_that_completes_stops_waiting() -> None:
    """Otherwise later messages, such as the response, would not be read."""
    epp = Epp(make_pool())
    first = begin(epp, 300)
    for _ in range(MAX_READING):
        begin(epp, 10, first)
    envoy = begin(epp, 270, first, FULL_DUPLEX)
    assert is_paused(envoy)
    envoy.request_body(BODY[:1], end=False)
    assert is_paused(envoy)
    envoy.request_body(b"", end=True)
    assert not is_paused(envoy)


def test_undecided_requests_do_not_count_as_arriving_bodies() -> None:
    epp = Epp(make_pool())
    first = PatientEnvoy(epp, LEAN, settings=SMALL)
    others = [PatientEnvoy(epp, LEAN, service=first.service) for _ in range(MAX_READING)]
    for each in [first, *others]:
        each.request_headers()
        each.request_body(b" " * 150)
    coming = [begin(epp, 2, first) for _ in range(MAX_READING + 1)]
    assert [is_paused(each) for each in coming] == [False] * MAX_READING + [True]


def test_waiting_bodies_resume_only_as_far_as_memory_allows() -> None:
    """Each may send a full window; together that exceeds the free memory."""
    held = HeldBytes(400 << 20, list, float)
    held.used_bytes, held.arriving_bodies = 320 << 20, 40
    holders = [Holder(1) for _ in range(40)]
    waiting = [each for each in holders if held.must_wait(each)]
    for each in waiting:
        each.is_paused = True
    assert len(waiting) == 40 - MAX_READING
    held.release(19 << 20)
    assert all(each.is_paused for each in waiting), "there is no room yet"
    held.release(10 << 20)
    assert [each.is_paused for each in waiting] == [False] * 10 + [True] * 26


def test_memory_released_by_the_transport_resumes_no_body_at_once() -> None:
    """Writes in the middle of a frame ended up between its parts."""
    held = HeldBytes(400 << 20, list, float)
    held.used_bytes, held.arriving_bodies = 320 << 20, MAX_READING + 1
    holder = Holder(1)
    holder.is_paused = held.must_wait(holder)
    held.give_back(100 << 20)
    assert holder.is_paused
    held.resume_waiting()
    assert not holder.is_paused


def test_a_buffered_body_does_not_wait() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 390)
    for size in (200, 10, 10, 10, 10):
        begin(epp, size, first)
    whole = Envoy(epp, ADAPTIVE, first.service)
    whole.request_headers()
    (reply,) = whole.request_body(BODY)
    assert_routes(reply, "request_body", A)
    assert not is_paused(whole)


class Holder:
    """A stream with a body of some chunks."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.held_bytes = 0
        self.is_paused = False

    source = ""
    is_critical = False
    is_arriving = True

    def stalled_seconds(self, now: float) -> float:
        return now

    def evict(self) -> None:
        raise AssertionError("nobody is short of memory")

    def resume_reading(self) -> None:
        self.is_paused = False


@given(
    bodies=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    turns=st.lists(st.integers(0, 11), max_size=200),
    chunk_bytes=st.integers(1, 60),
)
def test_at_least_one_body_always_progresses(
    bodies: list[int], turns: list[int], chunk_bytes: int
) -> None:
    held = HeldBytes(400, list, float)
    open_holders = [Holder(chunks) for chunks in bodies]
    decided: list[Holder] = []

    def go_on(holder: Holder) -> None:
        held.arriving_bodies += not holder.held_bytes
        holder.held_bytes += chunk_bytes
        held.used_bytes += chunk_bytes
        holder.chunks -= 1
        if not holder.chunks or held.used_bytes > held.limit_bytes:
            open_holders.remove(holder)
            decided.append(holder)
            held.body_arrived(holder)
            assert not holder.is_paused
        elif held.used_bytes > held.high_bytes and held.must_wait(holder):
            holder.is_paused = True

    def give_back() -> None:
        held.release(decided.pop(0).held_bytes)

    for turn in turns:
        if decided and turn % 2:
            give_back()
        elif open_holders and not (holder := open_holders[turn % len(open_holders)]).is_paused:
            go_on(holder)
        holders = open_holders + decided
        assert held.used_bytes == sum(each.held_bytes for each in holders)
        coming = [each for each in open_holders if each.held_bytes]
        assert held.arriving_bodies == len(coming)
        assert any(not each.is_paused for each in coming) or not coming
    while open_holders:
        go_on(next(each for each in open_holders if not each.is_paused))
    while decided:
        give_back()
    assert held.used_bytes == held.arriving_bodies == 0
