"""deploy/systemd: the command lines of the units serve, reload and stop, under their confinement.

No service manager runs here. The lines of a unit are run as processes that tell a socket of the
test what they would tell systemd, with those parts of the units' confinement that a process can
put on itself.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from epp.lab.fleet import Fleet, FleetConfig

from .harness import DEPLOY
from .processes import Processes, gateway_url, processes

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

UNITS = DEPLOY / "systemd"
ETC = "/etc/endpoint-picker"
BIN = "/opt/endpoint-picker/bin"

CONFINED = """
import ctypes, os, resource, sys
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 38, 65, 1
prctl = ctypes.CDLL(None, use_errno=True).prctl
os.umask(0o077)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
assert prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
# EINVAL: of a kernel before 6.3.
assert prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) == 0 or ctypes.get_errno() == 22
os.execv(sys.argv[1], sys.argv[1:])
"""
"""NoNewPrivileges, MemoryDenyWriteExecute, UMask and LimitCORE, and then the program."""


def lines(unit: str, key: str) -> list[list[str]]:
    """Return the command lines of a key of a unit, as words."""
    text = (UNITS / unit).read_text().replace("\\\n", " ")
    return [
        shlex.split(line.partition("=")[2])
        for line in text.splitlines()
        if line.partition("=")[0] == key
    ]


def value(unit: str, key: str) -> str:
    (words,) = lines(unit, key)
    return " ".join(words)


def option(words: list[str], name: str) -> str:
    (found,) = (word.partition("=")[2] for word in words if word.startswith(f"{name}="))
    return found


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(FleetConfig(endpoints=2, time_scale=0.01)) as running:
        yield running


def install(folder: Path, fleet: Fleet) -> None:
    """Put into the folder what docs/systemd.md puts into /etc/endpoint-picker."""
    (folder / "etc").mkdir()
    shutil.copyfile(DEPLOY / "config" / "default.yaml", folder / "etc" / "config.yaml")
    endpoints = []
    for index, address in enumerate(fleet.addresses):
        host, _, port = address.rpartition(":")
        endpoints.append({"name": f"vllm-{index}", "address": host, "port": int(port)})
    text = yaml.safe_dump({"endpoints": endpoints})
    (folder / "etc" / "endpoints.yaml").write_text(text)


@asynccontextmanager
async def installed(fleet: Fleet) -> AsyncIterator[tuple[Processes, socket.socket]]:
    """Yield a starter of processes, and the socket that they tell of themselves."""
    with (
        tempfile.TemporaryDirectory(prefix="epp-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
    ):
        folder = Path(name)
        await asyncio.to_thread(install, folder, fleet)
        systemd.bind(f"{name}/notify")
        systemd.setblocking(False)
        async with processes(folder, {ETC: f"{name}/etc"}) as started:
            yield started, systemd


async def notification(systemd: socket.socket) -> dict[str, str]:
    """Return the next message but for those of the watchdog."""
    async with asyncio.timeout(60):
        while True:
            data = await asyncio.get_running_loop().sock_recv(systemd, 4096)
            facts = dict(line.split("=", 1) for line in data.decode().split("\n"))
            if "WATCHDOG" not in facts:
                return facts


async def start_picker(
    started: Processes,
) -> tuple[asyncio.subprocess.Process, dict[str, int]]:
    (line,) = lines("endpoint-picker.service", "ExecStart")
    program, *words = line
    assert program == f"{BIN}/epp"
    assert words.pop() == "$EPP_OPTIONS"
    variables = (UNITS / "environment").read_text().splitlines()
    (options,) = (each.partition("=")[2] for each in variables if each.startswith("EPP_OPTIONS="))
    seconds = float(value("endpoint-picker.service", "WatchdogSec").removesuffix("s"))
    return await started.picker(
        *words,
        *options.split(),
        environment={
            **os.environ,
            "NOTIFY_SOCKET": f"{started.folder}/notify",
            "WATCHDOG_USEC": str(int(seconds * 1e6)),
        },
        under=(sys.executable, "-c", CONFINED),
    )


async def test_the_two_units_serve_a_request_and_stop_in_order(fleet: Fleet) -> None:
    async with installed(fleet) as (started, systemd), contextlib.AsyncExitStack() as stack:
        picker, ports = await start_picker(started)
        assert (await notification(systemd))["READY"] == "1"

        (line,) = lines("endpoint-picker-gateway.service", "ExecStart")
        assert line[0] == f"{BIN}/envoy"
        envoy, address = await started.envoy(
            DEPLOY / "envoy" / "sidecar-loopback.yaml",
            ports["grpc"],
            *line[1:],
            under=(sys.executable, "-c", CONFINED),
        )
        admin, client = [
            await stack.enter_async_context(
                await asyncio.to_thread(httpx.AsyncClient, trust_env=False, timeout=20)
            )
            for _ in range(2)
        ]
        admin.base_url = httpx.URL(f"http://{address}")
        url = await gateway_url(admin)
        body = {"model": "tiny", "prompt": "Hello"}
        response = await client.post(f"{url}/v1/completions", json=body)
        assert response.status_code == 200
        assert response.json()["choices"]

        (stopping,) = lines("endpoint-picker-gateway.service", "ExecStop")
        shell, script, admin_port, *_ = stopping
        bootstrap = yaml.safe_load((DEPLOY / "envoy" / "sidecar-loopback.yaml").read_text())
        assert bootstrap["admin"]["address"]["socket_address"]["port_value"] == int(admin_port)
        assert script == "/opt/endpoint-picker/libexec/drain.sh"
        drain = await started.start(
            *(shell, DEPLOY / "sidecar" / "drain.sh", address.rpartition(":")[2], "1", "20")
        )
        assert await asyncio.wait_for(drain.wait(), 20) == 0
        envoy.terminate()
        assert await asyncio.wait_for(envoy.wait(), 20) == 0
        picker.terminate()
        assert (await notification(systemd))["STOPPING"] == "1"
        assert await asyncio.wait_for(picker.wait(), 20) == 0


async def test_a_reload_is_reported_and_a_broken_file_does_not_reach_the_process(
    fleet: Fleet,
) -> None:
    async with installed(fleet) as (started, systemd):
        picker, _ = await start_picker(started)
        assert (await notification(systemd))["READY"] == "1"
        check, kill = lines("endpoint-picker.service", "ExecReload")
        assert kill == ["/bin/kill", "-HUP", "$MAINPID"]
        assert check[0] == f"{BIN}/epp"
        checking = [sys.executable, "-m", "epp", *map(started.here, check[1:])]
        checked = await started.start(*checking)
        assert await asyncio.wait_for(checked.wait(), 20) == 0
        picker.send_signal(signal.SIGHUP)
        assert (await notification(systemd))["RELOADING"] == "1"
        assert await notification(systemd) == {"READY": "1", "STATUS": "serving"}

        file = started.folder / "etc" / "config.yaml"
        await asyncio.to_thread(file.write_text, "plugins: [{type: no-such-plugin}]\n")
        checked = await started.start(*checking)
        assert await asyncio.wait_for(checked.wait(), 20) != 0
        picker.send_signal(signal.SIGHUP)
        assert (await notification(systemd))["RELOADING"] == "1"
        refused = await notification(systemd)
        assert refused["READY"] == "1"
        assert "no-such-plugin" in refused["STATUS"]


async def test_systemd_waits_longer_than_a_drain_takes() -> None:
    (line,) = lines("endpoint-picker.service", "ExecStart")
    seconds = sum(
        float(option(line, name).removesuffix("s"))
        for name in ("--drain-delay-seconds", "--drain-timeout")
    )
    assert float(value("endpoint-picker.service", "TimeoutStopSec").removesuffix("s")) > seconds + 5
    gateway = "endpoint-picker-gateway.service"
    (stopping,) = lines(gateway, "ExecStop")
    assert float(value(gateway, "TimeoutStopSec").removesuffix("s")) > float(stopping[-1])
    (envoy,) = lines(gateway, "ExecStart")
    assert envoy[envoy.index("--drain-time-s") + 1] == stopping[-2]
    assert "endpoint-picker.service" in value(gateway, "After")
