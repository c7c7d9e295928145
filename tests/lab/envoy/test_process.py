"""A real Envoy process: start, statistics, stop, and start-up errors."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from epp.lab.envoy import (
    EXT_PROC_STATS,
    EnvoyAdminError,
    EnvoyProcess,
    EnvoyStartError,
    GatewayConfig,
)
from epp.lab.envoy.bootstrap import render_yaml

pytestmark = pytest.mark.integration


def make_text(**settings: Any) -> str:
    defaults = {"endpoints": ("127.0.0.1:9",), "listen_port": 0}
    return render_yaml(GatewayConfig(**{**defaults, **settings}))


def make_script(folder: Path, text: str) -> Path:
    """A stand-in for Envoy's binary."""
    path = folder / "envoy"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


async def test_it_is_ready_when_entered_and_gone_when_left() -> None:
    async with EnvoyProcess(make_text()) as envoy, httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{envoy.admin_url}/ready")).text == "LIVE\n"
        assert envoy.returncode is None
    assert envoy.returncode == 0
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{envoy.admin_url}/ready")


async def test_it_tells_its_address_and_its_counters() -> None:
    async with EnvoyProcess(make_text(), concurrency=2) as envoy:
        host, port = await envoy.listener_address()
        assert host == "127.0.0.1"
        assert port > 0
        counters = await envoy.stats(EXT_PROC_STATS)
        assert counters[f"{EXT_PROC_STATS}streams_started"] == 0
        assert all(name.startswith(EXT_PROC_STATS) for name in counters)
        assert (await envoy.stats("server.concurrency"))["server.concurrency"] == 2
        with pytest.raises(EnvoyAdminError, match="no listener 'other'"):
            await envoy.listener_address("other")


@pytest.mark.parametrize("setting", ["listen_port", "admin_port"])
async def test_a_taken_port_is_named_at_once(setting: str) -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(EnvoyStartError, match=f"127.0.0.1:{port}.*Address already in use"):
            async with EnvoyProcess(make_text(**{setting: port})):
                pytest.fail("it started on a taken port")


async def test_two_gateways_do_not_share_a_port_in_silence() -> None:
    async with EnvoyProcess(make_text()) as envoy:
        _, port = await envoy.listener_address()
        with pytest.raises(EnvoyStartError, match="Address already in use"):
            async with EnvoyProcess(make_text(listen_port=port)):
                pytest.fail("it started on a taken port")


async def test_a_bad_bootstrap_is_named_at_its_start() -> None:
    text = make_text().replace("timeout: 0s", "timeout: soon")
    with pytest.raises(EnvoyStartError, match="duration") as caught:
        async with EnvoyProcess(text):
            pytest.fail("it started with a bad bootstrap")
    assert len(str(caught.value)) < 5000


async def test_an_envoy_that_never_gets_ready_is_stopped(tmp_path: Path) -> None:
    binary = make_script(tmp_path, "echo waiting for Godot >&2\nexec sleep 60\n")
    envoy = EnvoyProcess("", binary=binary, start_timeout_seconds=2.0)
    with pytest.raises(EnvoyStartError, match=r"not ready after 2 s:\nwaiting for Godot"):
        await envoy.__aenter__()
    assert envoy.returncode == -signal.SIGTERM


async def test_an_envoy_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    binary = make_script(tmp_path, "exec sleep 60\n")
    envoy = EnvoyProcess("", binary=binary, start_timeout_seconds=0.3, stop_timeout_seconds=0.3)
    # The child inherits this; a trap in the script might be set too late on a busy machine.
    handler = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with pytest.raises(EnvoyStartError, match="not ready"):
            await envoy.__aenter__()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert envoy.returncode == -signal.SIGKILL


async def test_the_end_of_envoy_can_be_awaited() -> None:
    async with EnvoyProcess(make_text()) as envoy:
        assert envoy._process is not None
        os.kill(envoy._process.pid, signal.SIGTERM)
        assert await envoy.wait() == 0
        with pytest.raises(EnvoyAdminError):
            await envoy.stats("server.")
