"""The service: keeps track of open streams and drains them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from request_control.harness import Epp, make_pool

from epp.ext_proc import ExtProcService, service
from ext_proc.harness import FULL_DUPLEX, Envoy
from ext_proc.wires import Wire

pytestmark = pytest.mark.usefixtures("wire")


async def begun(coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start ``coroutine`` as a task that runs as far as it can."""
    task = asyncio.create_task(coroutine)
    await asyncio.sleep(0)
    return task


async def end_of(task: "asyncio.Task[None]") -> None:
    await task


def test_draining_nothing_ends_at_once(wire: Wire) -> None:
    epp = Epp(make_pool())
    wire.run(ExtProcService(epp.director, epp.clock).drain(3600))


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


def test_a_response_that_passes_through_ends_with_its_next_chunk(wire: Wire) -> None:
    """Envoy keeps no copy of a chunk that is on its way when its stream ends."""
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    envoy.response_body(b"one")
    drain = wire.run(begun(envoy.service.drain(0)))
    wire.run(asyncio.sleep(0.02))
    assert not drain.done()
    (answer,) = envoy.response_body(b"two")
    assert answer.response_body.response.body_mutation.streamed_response.body == b"two"
    wire.run(end_of(drain))
    assert envoy.finished == [(0, "")]
    assert epp.in_flight == 0


def test_a_response_that_passes_through_and_stays_silent_is_left_too(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LAST_CHUNK_SECONDS", 0.02)
    epp = Epp(make_pool())
    envoy = Envoy(epp, FULL_DUPLEX)
    envoy.post()
    envoy.response_headers()
    wire.run(envoy.service.drain(0))
    assert envoy.finished == [(0, "")]
    assert epp.in_flight == 0
