"""Requests whose bodies come too slowly, or not at all."""

import asyncio

import pytest
from request_control.harness import BODY, Epp, make_pool

from epp.ext_proc import ExtProcSettings
from epp.ext_proc.upload_watch import BUFFERED_PATIENCE, STALLED_SECONDS
from ext_proc.harness import ADAPTIVE, FULL_DUPLEX, LEAN, Envoy, Modes, assert_routes
from ext_proc.held import PatientEnvoy

pytestmark = pytest.mark.usefixtures("wire")

SETTINGS = ExtProcSettings(
    body_timeout_seconds=30,
    body_min_bytes_per_second=10,
    max_body_bytes=40_000,
    max_held_bytes=80_000,
)
A = "10.0.0.1:8000"


def begin(epp: Epp, size: int = 100, first: Envoy | None = None, modes: Modes = LEAN) -> Envoy:
    envoy = Envoy(epp, modes, None if first is None else first.service, settings=SETTINGS)
    envoy.request_headers()
    if size:
        envoy.request_body(b" " * size, end=False)
    return envoy


def seconds_pass(envoy: Envoy, seconds: int, bytes_per_second: int = 0) -> None:
    """Let time pass, with a look each second."""
    watch = envoy.service.uploads
    for _ in range(seconds):
        envoy.epp.clock.now += 1
        if bytes_per_second:
            envoy.request_body(b" " * bytes_per_second, end=False)
        envoy.wire.call(lambda: watch.check(list(envoy.service.open_streams)))


def statuses(envoy: Envoy) -> list[int]:
    return [each.immediate_response.status.code for each in envoy.answers]


@pytest.mark.parametrize("size", [0, 100], ids=["nothing came", "a part came"])
@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])
def test_a_body_that_does_not_come_on_is_given_up(modes: Modes, size: int) -> None:
    """Nine bodies of 60 MB that were never finished held all memory until the attacker left."""
    envoy = begin(Epp(make_pool()), size, modes=modes)
    seconds_pass(envoy, 29 + bool(size))  # what came with the headers came fast enough
    assert statuses(envoy) == []
    seconds_pass(envoy, 1)
    assert statuses(envoy) == [408]
    assert b"less than 10 bytes a second for 30 s" in envoy.answers[0].immediate_response.body
    assert envoy.epp.value("request_limit_exceeded_total", limit="body-time") == 1
    held = envoy.service.held
    assert (held.used_bytes, held.arriving_bodies) == (0, 0)


def test_a_trickle_is_no_progress() -> None:
    envoy = begin(Epp(make_pool()))
    seconds_pass(envoy, 30, bytes_per_second=9)
    assert statuses(envoy) == []
    seconds_pass(envoy, 1)
    assert statuses(envoy) == [408]


def test_a_slow_body_that_keeps_the_rate_is_waited_for() -> None:
    envoy = begin(Epp(make_pool()))
    seconds_pass(envoy, 300, bytes_per_second=10)
    assert statuses(envoy) == []
    assert_routes(envoy.request_body(BODY)[0], "request_headers", A)


def test_a_burst_makes_up_for_a_silence() -> None:
    envoy = begin(Epp(make_pool()))
    for _ in range(5):
        seconds_pass(envoy, 28)
        seconds_pass(envoy, 1, bytes_per_second=290)
    assert statuses(envoy) == []


def test_a_body_that_envoy_buffers_is_waited_for_longer() -> None:
    envoy = begin(Epp(make_pool()), 0, modes=ADAPTIVE)
    envoy.take()
    seconds_pass(envoy, 30 * BUFFERED_PATIENCE - 1)
    assert statuses(envoy) == []
    seconds_pass(envoy, 1)
    assert statuses(envoy) == [408]


def test_a_whole_request_is_not_watched() -> None:
    envoy = PatientEnvoy(Epp(make_pool()), settings=SETTINGS)
    envoy.post()
    seconds_pass(envoy, 1000)
    assert statuses(envoy) == []


@pytest.mark.parametrize("wire", ["direct", "http2"], indirect=True)
def test_the_time_in_which_a_body_is_not_read_does_not_count() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 39_000)
    for _ in range(4):
        begin(epp, 100, first)
    paused = begin(epp, 25_000, first)
    assert paused.line.recorder.is_paused
    seconds_pass(paused, 45)
    assert statuses(first) == [408]
    assert statuses(paused) == []


def test_no_limit_is_no_limit() -> None:
    settings = ExtProcSettings(body_timeout_seconds=0)
    envoy = Envoy(Epp(make_pool()), LEAN, settings=settings)
    envoy.request_headers()
    seconds_pass(envoy, 1000)
    assert statuses(envoy) == []


def test_while_memory_is_short_a_stalled_body_goes_sooner() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 35_000)
    second = begin(epp, 30_000, first)
    seconds_pass(first, 1 + int(STALLED_SECONDS))
    first.wire.call(lambda: first.service.held.evict_stalled(STALLED_SECONDS + 1))
    assert statuses(first) + statuses(second) == []
    first.wire.call(lambda: first.service.held.evict_stalled(STALLED_SECONDS))
    assert sorted(statuses(first) + statuses(second)) == [503]


def test_while_there_is_memory_a_stalled_body_stays() -> None:
    envoy = begin(Epp(make_pool()), 39_000)
    seconds_pass(envoy, 10)
    envoy.wire.call(lambda: envoy.service.held.evict_stalled(STALLED_SECONDS))
    assert statuses(envoy) == []


@pytest.mark.looptime
@pytest.mark.parametrize("wire", ["direct"], indirect=True)
async def test_the_watch_looks_once_a_second() -> None:
    envoy = begin(Epp(make_pool()))
    running = asyncio.create_task(envoy.service.uploads.run())
    envoy.epp.clock.now += 30
    await asyncio.sleep(0.99)
    assert statuses(envoy) == []
    await asyncio.sleep(0.02)
    assert statuses(envoy) == [408]
    running.cancel()
