"""A gateway whose endpoint picker is a process that can be stopped, killed and replaced.

The fleet runs in this process; Envoy is a real one. The picker's log goes to a file, which is read
after the process has ended.
"""

import asyncio
import copy
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from epp.lab.envoy import EXT_PROC_STATS, CheckedHosts, EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import EPP_CLUSTER, EPP_LARGE_REQUESTS_CLUSTER
from epp.lab.fleet import Fleet, FleetConfig
from tools.harness.ports import free_ports
from tools.harness.worker_processes import worker_pids

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_ERRORS = frozenset({"error", "critical"})


@dataclass(frozen=True, slots=True)
class Setting:
    """Mode of Envoy, and its behaviour without a picker."""

    mode: Mode
    fail_open: bool = False
    health_check: bool = False
    """Whether Envoy checks the pickers' health."""
    others: tuple[Mode, ...] = ()
    """Modes of further Envoys in front of the same pickers; the traffic is spread over all."""
    workers: int = 1
    """Processes of each picker, with a socket file each."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The mode of each Envoy."""
        return (self.mode, *self.others)

    @property
    def name(self) -> str:
        """Name in tables, and the id of a test."""
        modes = ", ".join(mode.value for mode in self.modes)
        kinds = {
            " fail-open": self.fail_open,
            " health-check": self.health_check,
            f" {self.workers} workers": self.workers > 1,
        }
        return modes + "".join(name for name, is_asked in kinds.items() if is_asked)


SETTINGS = (*(Setting(mode) for mode in Mode), Setting(Mode.ADAPTIVE, fail_open=True))


@dataclass(slots=True)
class PickerProcess:
    """One ``epp serve`` process."""

    process: asyncio.subprocess.Process
    ports: dict[str, int]
    """``grpc``, ``health``, ``metrics``."""
    log_file: Path

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end and return its status."""
        async with asyncio.timeout(STOP_SECONDS):
            return await self.process.wait()

    async def log(self) -> list[dict[str, Any]]:
        """Return its log lines; one that is not JSON, such as a traceback, as an error."""
        lines = (await asyncio.to_thread(self.log_file.read_text)).splitlines()
        return [_entry(line) for line in lines]

    async def errors(self) -> list[str]:
        """Return the lines that report a fault."""
        return [str(each) for each in await self.log() if each.get("level") in _ERRORS]

    async def page(self, path: str) -> httpx.Response:
        """Return a page of the metrics port."""
        url = f"http://127.0.0.1:{self.ports['metrics']}{path}"
        # Without certificate authorities, which take 25 ms to load for each request.
        async with httpx.AsyncClient(timeout=5.0, trust_env=False, verify=False) as client:
            return await client.get(url)

    async def endpoints(self, worker: int) -> list[dict[str, Any]]:
        """Return the endpoints as a worker sees them."""
        page = await self.page(f"/debug/endpoints?worker={worker}")
        endpoints: list[dict[str, Any]] = page.json()["endpoints"]
        return endpoints

    async def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels."""
        return sum((await self.samples(name)).values())

    async def samples(self, name: str) -> dict[str, float]:
        """Return the samples of a metric by their labels, as written on the page."""
        page = (await self.page("/metrics")).text
        lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        parts = (line.rpartition(" ") for line in lines)
        return {labels: float(value) for labels, _, value in parts}

    async def until(self, metric: str, value: float) -> None:
        """Wait until a metric's sum has a value."""
        async with asyncio.timeout(START_SECONDS):
            while await self.metric(metric) != value:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)

    def workers(self) -> dict[int, int]:
        """Return the processes of the running workers by number; blocks."""
        return worker_pids(self.process.pid)

    async def until_idle(self) -> None:
        """Wait until nothing is reserved and no stream is open."""
        await self.until("llm_d_epp_endpoint_inflight_requests", 0)
        await self.until("llm_d_epp_transport_streams", 0)


def _entry(line: str) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return {"level": "error", "event": line}
    return entry


@dataclass(slots=True)
class Site:
    """A running gateway."""

    setting: Setting
    fleet: Fleet
    folder: Path
    options: Sequence[str]
    stack: AsyncExitStack
    pickers: list[PickerProcess] = field(default_factory=list)
    """All pickers, including those that have ended."""
    envoys: list[EnvoyProcess] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    """URLs of the Envoys."""

    @property
    def url(self) -> str:
        """URL of the first Envoy."""
        return self.urls[0]

    @property
    def picker(self) -> PickerProcess:
        """The picker that was started last."""
        return self.pickers[-1]

    @property
    def endpoints_file(self) -> Path:
        """The endpoints file."""
        return self.folder / "endpoints.json"

    @property
    def socket_file(self) -> Path:
        """Base path of the workers' socket files."""
        return self.folder / "ext-proc.sock"

    async def start_picker(self, *options: str, port: int = 0) -> PickerProcess:
        """Start one more picker and wait until it serves.

        Args:
            options: More options of ``epp serve``.
            port: That of an earlier picker; 0 for one that nobody takes while no picker has it.

        Raises:
            RuntimeError: It ended before.
        """
        workers = self.setting.workers
        if not port and workers == 1:
            (port,) = await asyncio.to_thread(free_ports, 1)
        number = len(self.pickers)
        ready, log = self.folder / f"ready-{number}", self.folder / f"log-{number}"
        arguments = ["--ready-file", str(ready), "--grpc-port", str(port), *self.options, *options]
        if workers > 1:
            arguments += ["--workers", str(workers), "--listen", f"unix:{self.socket_file}"]
        with await asyncio.to_thread(log.open, "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "epp", "serve", "--host", "127.0.0.1"),
                *("--secure-serving=false", "--grpc-health-port", "0", "--metrics-port", "0"),
                *("--endpoints-file", str(self.endpoints_file), *arguments),
                stdout=output,
                stderr=output,
            )
        self.stack.push_async_callback(_end, process)
        async with asyncio.timeout(START_SECONDS):
            while not await asyncio.to_thread(ready.exists):
                if process.returncode is not None:
                    text = await asyncio.to_thread(log.read_text)
                    raise RuntimeError(f"the picker ended with {process.returncode}:\n{text}")
                await asyncio.sleep(0.02)
        ports = json.loads(await asyncio.to_thread(ready.read_text))
        self.pickers.append(PickerProcess(process, ports, log))
        return self.picker

    async def list_endpoints(self, indexes: Sequence[int] | None = None) -> None:
        """Write the endpoints file, with all servers or those given."""
        chosen = range(len(self.fleet.servers)) if indexes is None else indexes
        servers = [self.fleet.servers[index] for index in chosen]
        entries = [
            {"name": server.name, "address": server.host, "port": server.port} for server in servers
        ]
        text = json.dumps({"endpoints": entries})
        partial = self.endpoints_file.with_suffix(".partial")
        await asyncio.to_thread(partial.write_text, text)
        await asyncio.to_thread(partial.replace, self.endpoints_file)

    async def faults(self) -> dict[str, int]:
        """Return Envoy's counters that must be 0 and are not."""
        counters: Counter[str] = Counter()
        for envoy in self.envoys:
            counters.update(await envoy.stats(EXT_PROC_STATS))
        names = ("spurious_msgs_received", "rejected_header_mutations")
        return {name: count for name in names if (count := counters[EXT_PROC_STATS + name])}


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@asynccontextmanager
async def site(
    setting: Setting,
    fleet: FleetConfig,
    *options: str,
    pickers: int = 1,
    prepare: Callable[[Path], Sequence[str]] = lambda _: (),
) -> AsyncIterator[Site]:
    """Run a fleet, endpoint pickers, and an Envoy in front of both.

    Args:
        setting: Mode of Envoy, health checks and workers.
        fleet: The model servers.
        options: Further options of ``epp serve``.
        pickers: Number of pickers that share the traffic.
        prepare: Writes files into the folder it is given and returns options that name them.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-faults-")))
        servers = await stack.enter_async_context(Fleet(fleet))
        more = await asyncio.to_thread(prepare, folder)
        if setting.health_check:
            more = (*more, "--health-checking")
        made = Site(setting, servers, folder, (*options, *more), stack)
        await made.list_endpoints()
        for _ in range(pickers):
            await made.start_picker()
        for mode in setting.modes:
            text = await asyncio.to_thread(_bootstrap, made, mode)
            envoy = await stack.enter_async_context(EnvoyProcess(text))
            host, port = await envoy.listener_address()
            made.envoys.append(envoy)
            made.urls.append(f"http://{host}:{port}")
        yield made


def _bootstrap(made: Site, mode: Mode) -> str:
    config = GatewayConfig(
        mode=mode,
        endpoints=made.fleet.addresses,
        listen_port=0,
        epp_port=made.picker.ports["grpc"] or 9002,
        epp_socket=str(made.socket_file) if made.setting.workers > 1 else "",
        epp_workers=made.setting.workers,
        fail_open=made.setting.fail_open,
        health_checks=frozenset(
            {CheckedHosts.ENDPOINT_PICKER} if made.setting.health_check else ()
        ),
    )
    document = bootstrap(config)
    if len(made.pickers) > 1:
        _share(document, [picker.ports["grpc"] for picker in made.pickers])
    return json.dumps(document)


def _share(document: dict[str, Any], ports: Sequence[int]) -> None:
    """Change a bootstrap so that Envoy spreads its requests over pickers at these ports."""
    clusters = document["static_resources"]["clusters"]
    for cluster in clusters:
        if cluster["name"] not in {EPP_CLUSTER, EPP_LARGE_REQUESTS_CLUSTER}:
            continue
        (locality,) = cluster["load_assignment"]["endpoints"]
        (host,) = locality["lb_endpoints"]
        locality["lb_endpoints"] = [copy.deepcopy(host) for _ in ports]
        for each, port in zip(locality["lb_endpoints"], ports, strict=True):
            each["endpoint"]["address"]["socket_address"]["port_value"] = port
