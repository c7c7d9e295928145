"""Notifications to systemd on a real socket, and ``epp serve`` as a unit of ``Type=notify``."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.cli.service_manager import ServiceManager
from epp.config import DEFAULT_CONFIG

ARGS = (
    *("serve", "--secure-serving=false", "--host", "127.0.0.1", "--endpoint", "127.0.0.1:1"),
    *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
)


@contextmanager
def receiver(address: str) -> Iterator[socket.socket]:
    """Yield the service manager's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(address.replace("@", "\0"))
        made.setblocking(False)
        yield made


async def message(of: socket.socket) -> dict[str, str]:
    async with asyncio.timeout(60):
        data = await asyncio.get_running_loop().sock_recv(of, 4096)
    return dict(line.split("=", 1) for line in data.decode().split("\n"))


async def no_reload() -> Sequence[str]:
    return []


@pytest.mark.parametrize("kind", ["path", "abstract"])
async def test_a_start_is_sent_to_a_path_and_in_the_abstract_namespace(
    kind: str, tmp_path: Path
) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@epp-{os.getpid()}"
    with receiver(address) as systemd:
        ServiceManager.of({"NOTIFY_SOCKET": address}).started("on\nWATCHDOG=trigger")
        assert await message(systemd) == {"READY": "1", "STATUS": "on WATCHDOG=trigger"}


async def test_a_reload_begins_and_ends_and_its_fault_is_the_status(tmp_path: Path) -> None:
    faults: list[str] = ["config.yaml:4:9: unknown plugin\nmore"]

    async def reload() -> Sequence[str]:
        return [faults.pop() if faults else "", ""]

    with receiver(str(tmp_path / "notify")) as systemd:
        manager = ServiceManager(str(tmp_path / "notify"))
        async with manager.notified(asyncio.Event(), reload):
            os.kill(os.getpid(), signal.SIGHUP)  # before the start: it waits
            manager.started("serving")
            assert (await message(systemd))["READY"] == "1"
            began = await message(systemd)
            assert began["RELOADING"] == "1"
            assert began["MONOTONIC_USEC"].isdecimal()
            assert await message(systemd) == {
                "READY": "1",
                "STATUS": "new configuration refused: config.yaml:4:9: unknown plugin more",
            }
            os.kill(os.getpid(), signal.SIGHUP)
            assert "RELOADING" in await message(systemd)
            assert await message(systemd) == {"READY": "1", "STATUS": "serving"}


async def test_a_loop_that_runs_notifies_twice_in_the_time_of_the_watchdog(tmp_path: Path) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "200000",
        "WATCHDOG_PID": str(os.getpid()),
    }
    with receiver(environment["NOTIFY_SOCKET"]) as systemd:
        async with ServiceManager.of(environment).notified(asyncio.Event(), no_reload):
            began = asyncio.get_running_loop().time()
            assert [await message(systemd) for _ in range(3)] == [{"WATCHDOG": "1"}] * 3
            assert 0.19 < asyncio.get_running_loop().time() - began < 2
        other = ServiceManager.of(environment | {"WATCHDOG_PID": "1"})
        stop = asyncio.Event()
        async with other.notified(stop, no_reload):
            stop.set()
            assert await message(systemd) == {"STOPPING": "1", "STATUS": "draining"}


async def test_what_cannot_be_sent_is_logged_and_nothing_fails(tmp_path: Path) -> None:
    with capture_logs() as logs:
        ServiceManager.of({}).started("serving")
        assert logs == []
        ServiceManager.of({"NOTIFY_SOCKET": "vsock:2:1"}).started("serving")
        ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "none")}).started("serving")
    assert [each["event"] for each in logs] == [
        "this kind of NOTIFY_SOCKET is not supported",
        "cannot notify the service manager",
    ]


@pytest.mark.integration
async def test_epp_serve_tells_its_start_reload_life_and_stop(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    await asyncio.to_thread(file.write_text, DEFAULT_CONFIG)
    with receiver(str(tmp_path / "notify")) as systemd:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "epp", *ARGS, "--config-file", file),
            env={
                **os.environ,
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
                "WATCHDOG_USEC": "60000000",
            },
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            assert await message(systemd) == {"WATCHDOG": "1"}
            assert await message(systemd) == {"READY": "1", "STATUS": "serving"}
            process.send_signal(signal.SIGHUP)
            assert "RELOADING" in await message(systemd)
            assert await message(systemd) == {"READY": "1", "STATUS": "serving"}
            process.terminate()
            assert (await message(systemd))["STOPPING"] == "1"
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
