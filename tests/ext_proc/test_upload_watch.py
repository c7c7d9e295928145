"""Requests whose bodies arrive too slowly, or not at all."""

import asyncio

import pytest

from epp.ext_proc import ExtProcSettings
from epp.ext_proc.upload_watch import BUFFERED_PATIENCE, STALLED_SECONDS
from tools.harness.ext_proc import ADAPTIVE, FULL_DUPLEX, LEAN, A, Envoy, Modes, assert_routes
from tools.harness.held import PatientEnvoy
from tools.harness.request_control import BODY, Epp, make_pool

pytestmark = pytest.mark.usefixtures("wire")

SETTINGS = ExtProcSettings(
    body_timeout_seconds=30,
    body_min_bytes_per_second=10,
    max_body_bytes=40_000,
    max_held_bytes=80_000,
)


def begin(epp: Epp, size: int = 100, first: Envoy | None = None, modes: Modes = LEAN) -> Envoy:
    envoy = Envoy(epp, modes, None if first is None else first.service, settings=SETTINGS)
    envoy.request_headers()
    if size:
        envoy.request_body(b" " * size, end=False)
    return envoy


def seconds_pass(envoy: Envoy, seconds: int, bytes_per_second: int = 0) -> None:
    """Advance the clock, with a check each second."""
    watch = envoy.service.uploads
    for _ in range(seconds):
        envoy.epp.clock.now += 1
        if bytes_per_second:
            envoy.request_body(b" " * bytes_per_second, end=False)
        envoy.wire.call(lambda: watch.check(list(envoy.service.open_streams)))


@pytest.mark.parametrize("size", [0, 100], ids=["nothing came", "a part came"])
@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["lean", "full duplex"])
def test_a_stalled_body_is_refused(modes: Modes, size: int) -> None:
    """Nine bodies of 60 MB that were never finished held all memory until the attacker left."""
    envoy = begin(Epp(make_pool()), size, modes=modes)
    seconds_pass(envoy, 29 + bool(size))  # what came with the headers came fast enough
    assert envoy.statuses == []
    seconds_pass(envoy, 1)
    assert envoy.statuses == [408]
    assert b"less than 10 bytes a second for 30 s" in envoy.replies[0].immediate_response.body
    assert envoy.epp.value("request_limit_exceeded_total", limit="body-time") == 1
    held = envoy.service.held
    assert (held.used_bytes, held.arriving_bodies) == (0, 0)


def test_an_upload_below_the_rate_is_no_progress() -> None:
    envoy = begin(Epp(make_pool()))
    seconds_pass(envoy, 30, bytes_per_second=9)
    assert envoy.statuses == []
    seconds_pass(envoy, 1)
    assert envoy.statuses == [408]


def test_an_upload_at_the_rate_is_not_refused() -> None:
    envoy = begin(Epp(make_pool()))
    seconds_pass(envoy, 300, bytes_per_second=10)
    assert envoy.statuses == []
    assert_routes(envoy.request_body(BODY)[0], "request_headers", A)


def test_a_burst_compensates_for_a_silence() -> None:
    envoy = begin(Epp(make_pool()))
    for _ in range(5):
        seconds_pass(envoy, 28)
        seconds_pass(envoy, 1, bytes_per_second=290)
    assert envoy.statuses == []


def test_a_buffered_body_has_a_longer_limit() -> None:
    envoy = begin(Epp(make_pool()), 0, modes=ADAPTIVE)
    envoy.take()
    seconds_pass(envoy, 30 * BUFFERED_PATIENCE - 1)
    assert envoy.statuses == []
    seconds_pass(envoy, 1)
    assert envoy.statuses == [408]


def test_a_complete_request_is_not_watched() -> None:
    envoy = PatientEnvoy(Epp(make_pool()), settings=SETTINGS)
    envoy.post()
    seconds_pass(envoy, 1000)
    assert envoy.statuses == []


@pytest.mark.parametrize("wire", ["direct", "http2"], indirect=True)
def test_time_without_reading_does_not_count() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 39_000)
    for _ in range(4):
        begin(epp, 100, first)
    paused = begin(epp, 25_000, first)
    assert paused.line.recorder.is_paused
    seconds_pass(paused, 45)
    assert first.statuses == [408]
    assert paused.statuses == []


def test_a_limit_of_0_is_off() -> None:
    settings = ExtProcSettings(body_timeout_seconds=0)
    envoy = Envoy(Epp(make_pool()), LEAN, settings=settings)
    envoy.request_headers()
    seconds_pass(envoy, 1000)
    assert envoy.statuses == []


def test_a_stalled_body_is_evicted_sooner_while_memory_is_short() -> None:
    epp = Epp(make_pool())
    first = begin(epp, 35_000)
    second = begin(epp, 30_000, first)
    seconds_pass(first, 1 + int(STALLED_SECONDS))
    first.wire.call(lambda: first.service.held.evict_stalled(STALLED_SECONDS + 1))
    assert first.statuses + second.statuses == []
    first.wire.call(lambda: first.service.held.evict_stalled(STALLED_SECONDS))
    assert sorted(first.statuses + second.statuses) == [503]


def test_a_stalled_body_stays_while_there_is_memory() -> None:
    envoy = begin(Epp(make_pool()), 39_000)
    seconds_pass(envoy, 10)
    envoy.wire.call(lambda: envoy.service.held.evict_stalled(STALLED_SECONDS))
    assert envoy.statuses == []


@pytest.mark.looptime
@pytest.mark.parametrize("wire", ["direct"], indirect=True)
async def test_uploads_are_checked_once_a_second() -> None:
    envoy = begin(Epp(make_pool()))
    running = asyncio.create_task(envoy.service.uploads.run())
    envoy.epp.clock.now += 30
    await asyncio.sleep(0.99)
    assert envoy.statuses == []
    await asyncio.sleep(0.02)
    assert envoy.statuses == [408]
    running.cancel()
