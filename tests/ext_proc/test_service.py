"""The service: keeps track of open streams and drains them."""

import asyncio

from request_control.harness import Epp, make_pool

from epp.ext_proc import ExtProcService
from ext_proc.harness import Envoy, Recorder


async def test_draining_nothing_ends_at_once() -> None:
    epp = Epp(make_pool())
    await ExtProcService(epp.director, epp.clock).drain(3600)


async def test_draining_waits_for_the_last_open_stream() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    second = envoy.service.opened(Recorder(), {})
    envoy.post()
    drain = asyncio.create_task(envoy.service.drain(3600))
    await asyncio.sleep(0)
    envoy.response_headers()
    envoy.response_trailers()
    await asyncio.sleep(0)
    assert not drain.done()
    second.reset()
    await drain
    assert envoy.recorder.finished == []
    assert epp.in_flight == 0


async def test_streams_open_after_the_time_are_ended_with_ok() -> None:
    epp = Epp(make_pool())
    envoy = Envoy(epp)
    silent = Recorder()
    envoy.service.opened(silent, {})
    envoy.post()
    envoy.response_headers()
    await envoy.service.drain(0)
    assert envoy.recorder.finished == silent.finished == [(0, "")]
    assert not envoy.service.open_streams
    assert epp.in_flight == 0
