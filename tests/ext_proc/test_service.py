"""The service tracks open streams and drains them."""

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from epp.ext_proc import ExtProcService, ExtProcSettings, OneHandler, pauses
from epp.request_control import EndCause, RoutedRequest
from epp.request_control.live_requests import LiveRequests
from tools.harness.ext_proc import FULL_DUPLEX, Envoy, error_headers
from tools.harness.request_control import Epp, make_pool
from tools.harness.wires import Wire

pytestmark = pytest.mark.usefixtures("wire")


async def begun(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start ``coroutine`` as a task and run it to its first wait."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def end_of(task: "asyncio.Task[None]") -> None:
    await task


def test_draining_nothing_ends_at_once(wire: Wire) -> None:
    epp = Epp(make_pool())
    wire.run(ExtProcService(OneHandler(epp.director), epp.clock).drain(3600))


def test_a_fault_at_the_end_of_one_stream_does_not_keep_the_others_open(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    epp = Epp(make_pool())
    first = Envoy(epp)
    envoys = [first, *(Envoy(epp, service=first.service) for _ in range(2))]
    for envoy in envoys:
        envoy.post()
    ended = LiveRequests.ended

    def broken(live: LiveRequests, exchange: RoutedRequest, cause: EndCause) -> None:
        ended(live, exchange, cause)
        raise RuntimeError("a bug")

    monkeypatch.setattr(LiveRequests, "ended", broken)
    with capture_logs() as logs:
        wire.run(first.service.drain(0))
    assert [line["event"] for line in logs].count("ending a stream failed") == len(envoys)
    assert [envoy.finished for envoy in envoys] == [[(0, "")]] * len(envoys)
    assert first.service.open_streams == set()


def test_draining_waits_for_the_last_open_stream(wire: Wire) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    second = Envoy(epp, service=envoy.service)
    envoy.post()
    drain = wire.run(begun(envoy.service.drain(3600)))
    envoy.response_headers()
    envoy.response_trailers()
    wire.run(asyncio.sleep(0))
    assert not drain.done()
    second.reset()
    wire.run(end_of(drain))
    assert envoy.finished == []
    assert epp.in_flight == 0


def test_streams_open_after_the_time_are_ended_with_ok(wire: Wire) -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    silent = Envoy(epp, service=envoy.service)
    envoy.post()
    envoy.response_headers()
    wire.run(envoy.service.drain(0))
    assert envoy.finished == silent.finished == [(0, "")]
    assert not envoy.service.open_streams
    assert epp.in_flight == 0


def test_a_request_above_max_streams_is_refused() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, settings=ExtProcSettings(max_streams=2))
    second = Envoy(epp, service=envoy.service)
    for each in (envoy, second):
        each.post()
    surplus = Envoy(epp, service=envoy.service)
    (reply,) = surplus.request_headers()
    assert reply.immediate_response.status.code == 503
    headers = error_headers(reply.immediate_response)
    assert headers == {
        "content-type": "application/json",
        "retry-after": "1",
        "x-llm-d-request-dropped-reason": "rejected-too-many-streams",
        "x-request-id": "r-1",
    }
    assert b"no more than 2 may be open" in reply.immediate_response.body
    assert surplus.finished == [(0, "")]
    assert epp.value("request_limit_exceeded_total", limit="streams") == 1
    second.reset()
    after = Envoy(epp, service=envoy.service)
    (reply,) = after.post()[:1]
    assert reply.WhichOneof("response") == "request_headers"
    assert epp.in_flight == 2


def test_max_streams_0_is_no_limit() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp, settings=ExtProcSettings(max_streams=0))
    others = [Envoy(epp, service=envoy.service) for _ in range(20)]
    for each in (envoy, *others):
        each.post()
    assert epp.in_flight == 21


def test_a_response_that_passes_through_ends_after_its_next_chunk(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Envoy keeps no copy of a chunk in flight when its stream ends."""
    monkeypatch.setattr(pauses, "LAST_CHUNK_SECONDS", 15)
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    envoy.response_body(b"one")
    drain = wire.run(begun(envoy.service.drain(0)))
    wire.run(asyncio.sleep(0.02))
    assert not drain.done()
    (reply,) = envoy.response_body(b"two")
    assert reply.response_body.response.body_mutation.streamed_response.body == b"two"
    wire.run(end_of(drain))
    assert envoy.finished == [(0, "")]
    assert epp.in_flight == 0


@pytest.mark.parametrize("wire", ["direct"], indirect=True)  # over a socket the gaps vary
def test_chunks_that_come_together_all_pass_before_the_end(wire: Wire) -> None:
    """The last tokens of a response, its usage and its [DONE] are separate chunks."""
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    drain = wire.run(begun(envoy.service.drain(0)))
    wire.run(asyncio.sleep(0.02))
    for chunk in (b"token", b"usage", b"[DONE]"):
        (reply,) = envoy.response_body(chunk)
        assert reply.response_body.response.body_mutation.streamed_response.body == chunk
    assert envoy.finished == []
    wire.run(end_of(drain))
    assert envoy.finished == [(0, "")]
    assert epp.in_flight == 0


@pytest.mark.parametrize("wire", ["direct"], indirect=True)  # over a socket nothing is in step
def test_responses_in_step_are_not_all_ended_in_one_pause(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ending a stream takes time, in which the next chunks of the others may arrive."""
    monkeypatch.setattr(pauses, "ENDS_AT_ONCE", 2)
    monkeypatch.setattr(pauses, "LAST_CHUNK_SECONDS", 15)
    epp = Epp(make_pool())
    first = Envoy(epp, FULL_DUPLEX)
    envoys = [first, *(Envoy(epp, FULL_DUPLEX, service=first.service) for _ in range(4))]
    for envoy in envoys:
        envoy.post()
        envoy.response_headers()
    drain = wire.run(begun(first.service.drain(0)))
    still_open = [5]
    while not drain.done():
        for envoy in envoys:
            if not envoy.finished:
                envoy.response_body(b"chunk")
        wire.run(asyncio.sleep(0.02))
        still_open.append(sum(not envoy.finished for envoy in envoys))
    assert max(before - after for before, after in pairwise(still_open)) == 2
    assert epp.in_flight == 0


def test_a_silent_response_is_detached_too(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "LAST_CHUNK_SECONDS", 0.02)
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    wire.run(envoy.service.drain(0))
    assert envoy.finished == [(0, "")]
    assert epp.in_flight == 0
