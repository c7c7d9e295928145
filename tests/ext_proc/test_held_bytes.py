"""The memory that bodies of undecided requests take together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from request_control.harness import BODY, Epp, Policies, make_pool

from epp.ext_proc import ExtProcSettings
from epp.ext_proc.held_bytes import MOST_READ, HeldBytes
from epp.request_control import Exchange
from ext_proc.harness import ADAPTIVE, FULL_DUPLEX, LEAN, Envoy, Modes, assert_routes
from ext_proc.held import PatientEnvoy

pytestmark = pytest.mark.usefixtures("wire")

SMALL = ExtProcSettings(max_body_bytes=400, max_held_bytes=800)
A = "10.0.0.1:8000"


def is_paused(envoy: Envoy) -> bool:
    return envoy.line.recorder.is_paused


def begin(epp: Epp, size: int, first: Envoy | None = None, modes: Modes = LEAN) -> Envoy:
    """Send headers and ``size`` bytes of a body that is not whole."""
    service = None if first is None else first.service
    envoy = Envoy(epp, modes, service, settings=SMALL)
    envoy.request_headers()
    envoy.request_body(b" " * size, end=False)
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
def test_a_body_of_our_own_is_forgotten_with_it(modes: Modes) -> None:
    epp = Epp(make_pool(), policies=Policies(targets={"llama": "alpaca"}))
    exchanges: list[Exchange] = []
    envoy = PatientEnvoy(epp, modes, kind=None, change=exchanges.append)
    answers = envoy.post()
    assert b"alpaca" in b"".join(each.SerializeToString() for each in answers)
    (exchange,) = exchanges
    assert (exchange.body, exchange.request.prompt) == (b"", b"")
    assert exchange.is_renamed


def test_a_client_that_leaves_gives_its_bytes_back() -> None:
    envoy = begin(Epp(make_pool()), 100)
    envoy.reset()
    assert envoy.service.held.used_bytes == 0


def test_beyond_the_limit_a_request_is_refused() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 400)
    begin(epp, 380, first)
    surplus = begin(epp, 21, first)
    (answer,) = surplus.answers
    assert answer.immediate_response.status.code == 503
    headers = {
        each.header.key: each.header.raw_value
        for each in answer.immediate_response.headers.set_headers
    }
    assert headers["retry-after"] == b"1"
    assert headers["x-llm-d-request-dropped-reason"] == b"rejected-held-bytes"
    assert b"hold 800 bytes already" in answer.immediate_response.body
    assert surplus.finished == [(0, "")]
    assert epp.value("request_limit_exceeded_total", limit="held-bytes") == 1
    assert first.service.held.used_bytes == 780


def test_a_body_that_is_too_long_by_itself_is_told_so() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 400)
    surplus = begin(epp, 401, first)
    assert [each.immediate_response.status.code for each in surplus.answers] == [413]


def test_bodies_wait_when_little_is_left_all_but_a_few() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 300)
    others = [begin(epp, 10, first) for _ in range(MOST_READ + 1)]
    last = begin(epp, 280, first)
    assert is_paused(last)
    for each in others:
        each.request_body(b" ", end=False)
    assert [is_paused(each) for each in others] == [True] * 2 + [False] * 3
    first.request_body(b"", end=True)  # refused, as no parser reads blanks; what counts is its end
    assert [is_paused(each) for each in [*others, last]] == [False, True] + [False] * 4
    others[0].request_body(BODY)
    assert_routes(others[0].answers[0], "request_headers", A)
    assert not is_paused(others[1])


# grpcio reads nothing at all of a stream that is to wait.
@pytest.mark.parametrize("wire", ["direct", "http2"], indirect=True)
def test_a_body_that_was_to_wait_and_came_all_the_same_does_so_no_more() -> None:
    """What comes after it, such as the response, would be read no more."""
    epp = Epp(make_pool())
    first = begin(epp, 300)
    for _ in range(MOST_READ):
        begin(epp, 10, first)
    envoy = begin(epp, 270, first, FULL_DUPLEX)
    assert is_paused(envoy)
    envoy.request_body(BODY[:1], end=False)
    assert is_paused(envoy)
    envoy.request_body(b"", end=True)
    assert not is_paused(envoy)


def test_bodies_that_wait_for_their_decisions_are_none_of_those_that_are_read() -> None:
    epp = Epp(make_pool())
    first = PatientEnvoy(epp, LEAN, settings=SMALL)
    others = [PatientEnvoy(epp, LEAN, service=first.service) for _ in range(MOST_READ)]
    for each in [first, *others]:
        each.request_headers()
        each.request_body(b" " * 150)
    coming = [begin(epp, 2, first) for _ in range(MOST_READ + 1)]
    assert [is_paused(each) for each in coming] == [False] * MOST_READ + [True]


def test_not_all_that_wait_are_let_on_at_once() -> None:
    """Each may send what its window takes, which together is more than there is room for."""
    held = HeldBytes(400 << 20)
    held.used_bytes, held.readers = 320 << 20, 40
    holders = [Holder(1) for _ in range(40)]
    waiting = [each for each in holders if held.must_wait(each)]
    for each in waiting:
        each.is_paused = True
    assert len(waiting) == 40 - MOST_READ
    held.give_back(19 << 20)
    assert all(each.is_paused for each in waiting), "there is no room yet"
    held.give_back(10 << 20)
    assert [each.is_paused for each in waiting] == [False] * 10 + [True] * 26


def test_a_body_that_comes_whole_need_not_wait() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 390)
    for size in (200, 10, 10, 10, 10):
        begin(epp, size, first)
    whole = Envoy(epp, ADAPTIVE, first.service)
    whole.request_headers()
    (answer,) = whole.request_body(BODY)
    assert_routes(answer, "request_body", A)
    assert not is_paused(whole)


class Holder:
    """A stream with a body of some chunks."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.held_bytes = 0
        self.is_paused = False

    def read_on(self) -> None:
        self.is_paused = False


@given(
    bodies=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    turns=st.lists(st.integers(0, 11), max_size=200),
    chunk_bytes=st.integers(1, 60),
)
def test_there_is_always_a_body_that_goes_on(
    bodies: list[int], turns: list[int], chunk_bytes: int
) -> None:
    held = HeldBytes(400)
    open_holders = [Holder(chunks) for chunks in bodies]
    decided: list[Holder] = []

    def go_on(holder: Holder) -> None:
        held.readers += not holder.held_bytes
        holder.held_bytes += chunk_bytes
        held.used_bytes += chunk_bytes
        holder.chunks -= 1
        if not holder.chunks or held.used_bytes > held.limit_bytes:
            open_holders.remove(holder)
            decided.append(holder)
            held.read(holder)
            assert not holder.is_paused
        elif held.used_bytes > held.high_bytes and held.must_wait(holder):
            holder.is_paused = True

    def give_back() -> None:
        held.give_back(decided.pop(0).held_bytes)

    for turn in turns:
        if decided and turn % 2:
            give_back()
        elif open_holders and not (holder := open_holders[turn % len(open_holders)]).is_paused:
            go_on(holder)
        holders = open_holders + decided
        assert held.used_bytes == sum(each.held_bytes for each in holders)
        coming = [each for each in open_holders if each.held_bytes]
        assert held.readers == len(coming)
        assert sum(not each.is_paused for each in coming) >= min(len(coming), MOST_READ)
    while open_holders:
        go_on(next(each for each in open_holders if not each.is_paused))
    while decided:
        give_back()
    assert held.used_bytes == held.readers == 0
