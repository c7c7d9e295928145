"""Command lines of deploy/, run as processes with the paths and ports of this machine."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from epp.lab.envoy import find_envoy
from epp.lab.envoy.names import LISTENER


def epp_address(cluster: dict[str, Any]) -> dict[str, Any]:
    """Return the address in a cluster of the endpoint picker."""
    (lb_endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address: dict[str, Any] = lb_endpoint["endpoint"]["address"]
    return address


def socket_address(of: dict[str, Any]) -> dict[str, Any]:
    address: dict[str, Any] = of["address"]["socket_address"]
    return address


async def until(
    holds: Callable[[], bool], process: asyncio.subprocess.Process | None = None
) -> None:
    """Wait for what another process does, unless it ends; fail after 20 s."""
    async with asyncio.timeout(60):
        while not holds():
            assert process is None or process.returncode is None, "it has exited"
            await asyncio.sleep(0.01)  # nothing there tells of it


async def gateway_url(admin: httpx.AsyncClient) -> str:
    """Wait until Envoy is ready; return where it listens."""
    async with asyncio.timeout(60):
        while (await admin.get("/ready")).status_code != httpx.codes.OK:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    listeners = (await admin.get("/listeners", params={"format": "json"})).json()
    (found,) = (each for each in listeners["listener_statuses"] if each["name"] == LISTENER)
    return f"http://127.0.0.1:{found['local_address']['socket_address']['port_value']}"


@dataclass(slots=True)
class Processes:
    """Processes of a test; `places` maps paths of command lines to those of this machine."""

    folder: Path
    places: dict[str, str] = field(default_factory=dict)
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    def here(self, word: str) -> str:
        """Return a word of a command line with the paths of this machine."""
        for place, found in self.places.items():
            word = word.replace(place, found)
        return word

    async def start(
        self, *words: str | Path, environment: Mapping[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
        )
        self.running.append(process)
        return process

    async def picker(
        self,
        *words: str,
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
    ) -> tuple[asyncio.subprocess.Process, dict[str, int]]:
        """Start `epp` with the words and free ports, behind `under`; return the ports, too."""
        ready = self.folder / "ready"
        process = await self.start(
            *(*under, sys.executable, "-m", "epp", *map(self.here, words)),
            *("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"),
            f"--ready-file={ready}",
            environment=environment,
        )
        await until(ready.exists, process)
        ports: dict[str, int] = json.loads(ready.read_text())
        return process, ports

    async def envoy(
        self, bootstrap: Path, picker_port: int, *words: str, under: Sequence[str] = ()
    ) -> tuple[asyncio.subprocess.Process, str]:
        """Start Envoy with the words and a copy of the bootstrap with free ports.

        Returns: The process, and the address of its admin endpoint.
        """
        args = [self.here(word) for word in words]
        copy = Path(args[args.index("--config-path") + 1])
        await asyncio.to_thread(self._copy, bootstrap, copy, picker_port)
        args[args.index("--drain-time-s") + 1] = "1"
        admin = self.folder / "admin"
        binary = await asyncio.to_thread(find_envoy)
        process = await self.start(
            *under, binary, *args, "--admin-address-path", admin, "--concurrency", "1"
        )
        await until(lambda: admin.exists() and bool(admin.read_text()), process)
        return process, admin.read_text()

    def _copy(self, bootstrap: Path, copy: Path, picker_port: int) -> None:
        document = yaml.safe_load(bootstrap.read_text())
        socket_address(document["static_resources"]["listeners"][0])["port_value"] = 0
        socket_address(document["admin"])["port_value"] = 0
        for cluster in document["static_resources"]["clusters"][:-1]:
            address = epp_address(cluster)
            if "pipe" in address:
                address["pipe"]["path"] = self.here(address["pipe"]["path"])
            else:
                address["socket_address"]["port_value"] = picker_port
        copy.write_text(yaml.safe_dump(document))


@asynccontextmanager
async def processes(folder: Path, places: Mapping[str, str]) -> AsyncIterator[Processes]:
    """Yield a starter of processes, which are killed at the end."""
    made = Processes(folder, dict(places))
    try:
        yield made
    finally:
        for process in made.running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
