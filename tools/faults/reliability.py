"""Scorecard: errors and delays of clients when one or two of four model servers fail, at 200 req/s.

Model servers are processes that are killed, stopped or told to fail; Envoy is a real one. Each
fault begins after 2 s and lasts 5 s; 4 s later the run ends. Three setups are compared:

``epp``
    The default configurations of the endpoint picker and of Envoy.
``envoy``
    Envoy's own outlier detection, and none in the endpoint picker.
``none``
    No outlier detection, and no retries.
"""

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import httpx
from rich.table import Table

from epp.lab.envoy import EnvoyProcess, GatewayConfig, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.names import MODEL_SERVERS_CLUSTER
from tools import REPOSITORY
from tools.bench import processes
from tools.faults.traffic import Sent, Traffic, Verdict, kinds

SERVERS = 4
RATE = 200.0
BEFORE_SECONDS, FAULT_SECONDS, AFTER_SECONDS = 2.0, 5.0, 4.0
CALM_RATE = 52.0
"""Requests a second of a run without faults: 90 % of what the fleet can serve. A model server of
:data:`tools.faults.model_server.ENGINE` makes 64 tokens in 42 ms, and a request has 105."""
SLOW_SECONDS = 2.0
"""Responses that take longer count as slow; they usually take 0.05 to 0.5 s."""
POLL_SECONDS = 0.02
START_SECONDS = 20.0

ENVOYS_DETECTION = {
    "consecutive_5xx": 3,
    "consecutive_gateway_failure": 3,
    "enforcing_consecutive_gateway_failure": 100,
    "interval": "0.5s",
    "base_ejection_time": "1s",
    "max_ejection_percent": 50,
}
"""Envoy's settings that are closest to those of the endpoint picker."""


class Setup(Enum):
    """The component that detects the fault."""

    EPP = "epp"
    ENVOY = "envoy"
    NONE = "none"


@dataclass(slots=True)
class ModelServer:
    """A model server as a process."""

    index: int
    folder: Path
    port: int = 0
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, on its previous port if it ran before."""
        ready = self.folder / f"server-{self.index}-{time.monotonic_ns()}"
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tools.faults.model_server"),
            *("--port", str(self.port), "--index", str(self.index), "--ready-file", str(ready)),
            stdin=asyncio.subprocess.PIPE,
            cwd=REPOSITORY,
        )
        async with asyncio.timeout(START_SECONDS):
            while not ready.exists():  # noqa: ASYNC110 - the process tells only by the file
                await asyncio.sleep(0.01)
        self.port = json.loads(ready.read_text())["port"]

    async def kill(self) -> None:
        """Kill the process and wait for its end."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def set(self, **values: object) -> None:
        """Set faults, or its speed."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: how it begins, and how it ends."""

    name: str
    begin: Callable[[ModelServer], Any]
    end: Callable[[ModelServer], Any]
    servers: int = 1
    """Number of servers that fail at the same time."""
    seconds: float = FAULT_SECONDS
    """Duration of the fault."""


def _set(
    name: str, field_name: str, value: object, normal: object, seconds: float = FAULT_SECONDS
) -> Fault:
    return Fault(
        name,
        lambda server: server.set(**{field_name: value}),
        lambda server: server.set(**{field_name: normal}),
        seconds=seconds,
    )


FAULTS = (
    Fault("killed", ModelServer.kill, ModelServer.start),
    Fault("two-killed", ModelServer.kill, ModelServer.start, servers=2),
    Fault(
        "stopped",
        lambda server: server.signal(signal.SIGSTOP),
        lambda server: server.signal(signal.SIGCONT),
    ),
    _set("hangs", "hang", True, False),
    _set("generation-hangs", "hang_generation", True, False, seconds=2 * FAULT_SECONDS),
    _set("fast-500", "error_status", 500, None),
    _set("health-503", "health_status", 503, None),
    _set("cut-responses", "cut_responses", True, False),
    _set("slow", "speed", 1 / 3, 1.0),
    _set("wrong-metrics", "garbled_metrics", True, False),
)


@dataclass(slots=True)
class States:
    """The health of the failing endpoint over time, as the endpoint picker shows it."""

    seen: list[tuple[float, str]] = field(default_factory=list)
    """Times at which the state was first seen, and the state."""

    async def watch(self, url: str, address: str) -> None:
        """Poll the page of the endpoints until cancelled."""
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    page = (await client.get(url)).json()
                    (state,) = [e["state"] for e in page["endpoints"] if e["address"] == address]
                    if not self.seen or self.seen[-1][1] != state:
                        self.seen.append((time.monotonic(), state))
                await asyncio.sleep(POLL_SECONDS)

    def seconds_until(self, state: str, since: float) -> float | None:
        """Return the seconds from ``since`` until the state was seen; None for never."""
        return next((at - since for at, each in self.seen if each == state and at >= since), None)


@dataclass(frozen=True, slots=True)
class Score:
    """The result of one run."""

    fault: str
    mode: Mode
    setup: Setup
    sent: Sequence[Sent]
    failing: Collection[str]
    """Names of the failing servers."""
    began_at: float
    ended_at: float
    states: States

    @property
    def failed(self) -> int:
        """Requests without a response, or with an error."""
        return sum(each.verdict in {Verdict.REFUSED, Verdict.WRONG} for each in self.sent)

    @property
    def cut(self) -> int:
        """Responses that began and were truncated; they cannot be retried."""
        return sum(each.verdict is Verdict.TRUNCATED for each in self.sent)

    @property
    def slow(self) -> int:
        """Complete responses that took longer than `SLOW_SECONDS`."""
        return sum(
            each.verdict is Verdict.WHOLE and each.ended_at - each.began_at > SLOW_SECONDS
            for each in self.sent
        )

    @property
    def last_harm(self) -> float | None:
        """Seconds from the fault to the last request that failed, was cut or was slow, if any."""
        harmed = [
            each.began_at - self.began_at
            for each in self.sent
            if each.verdict is not Verdict.WHOLE or each.ended_at - each.began_at > SLOW_SECONDS
        ]
        return max(harmed, default=None)

    @property
    def misses_aim(self) -> bool:
        """Whether requests failed that fallback endpoints should have saved."""
        return self.setup is Setup.EPP and self.fault.endswith("killed") and self.failed > 0

    def share(self, since: float, until: float) -> float:
        """Return the failing servers' share of the complete responses of a period."""
        served = [
            each.server
            for each in self.sent
            if each.verdict is Verdict.WHOLE and since <= each.began_at < until
        ]
        return sum(name in self.failing for name in served) / len(served) if served else 0.0

    def cells(self) -> list[str]:
        """Return the row of a table."""
        shares = (
            self.share(0.0, self.began_at),
            self.share(self.began_at + 1.0, self.ended_at),
            self.share(self.ended_at + AFTER_SECONDS - 2.0, self.ended_at + AFTER_SECONDS),
        )
        return [
            self.fault,
            self.mode.value,
            self.setup.value,
            *(str(count) for count in (len(self.sent), self.failed, self.cut, self.slow)),
            _seconds(self.last_harm),
            _seconds(self.states.seconds_until("ejected", self.began_at)),
            " → ".join(f"{share:.0%}" for share in shares),
            _seconds(self.states.seconds_until("healthy", self.ended_at)),
        ]


COLUMNS = (
    *("fault", "mode", "setup", "requests", "failed", "cut", "slow", "last harm"),
    *("ejected after", "share before → during → after", "healthy after"),
)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


async def measure(fault: Fault, mode: Mode, setup: Setup, rate: float = RATE) -> Score:
    """Run one fault."""
    async with _gateway(mode, setup) as (url, page_url, servers):
        failing = servers[: fault.servers]
        traffic, states = Traffic([url], kinds(4, 30)), States()
        seconds = BEFORE_SECONDS + fault.seconds + AFTER_SECONDS
        traffic.may_stop.set()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(traffic.run(int(seconds * rate), rate))
            watching = None
            if setup is Setup.EPP:
                address = f"127.0.0.1:{failing[0].port}"
                watching = tasks.create_task(states.watch(page_url, address))
            await traffic.until_begun(int(BEFORE_SECONDS * rate))
            began_at = time.monotonic()
            await asyncio.gather(*(_done(fault.begin(server)) for server in failing))
            await traffic.until_begun(int((BEFORE_SECONDS + fault.seconds) * rate))
            ended_at = time.monotonic()
            await asyncio.gather(*(_done(fault.end(server)) for server in failing))
            await sending
            if watching is not None:
                watching.cancel()
        await traffic.aclose()
        names = {f"endpoint-{server.index}" for server in failing}
        return Score(fault.name, mode, setup, traffic.sent, names, began_at, ended_at, states)


@dataclass(frozen=True, slots=True)
class Calm:
    """The result of a run without faults."""

    requests: int
    verdicts: Counter[Verdict]
    slowest_seconds: float
    ejections: float
    """Ejections by the endpoint picker; each of them is false."""


async def calm(mode: Mode, minutes: float, rate: float = CALM_RATE) -> Calm:
    """Load a healthy fleet to 90 % with a mix of short and long responses."""
    async with _gateway(mode, Setup.EPP) as (url, page_url, _):
        traffic = Traffic([url], kinds(8, 300), timeout_seconds=120.0)
        traffic.may_stop.set()
        await traffic.run(int(minutes * 60 * rate), rate)
        await traffic.aclose()
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            page = (await client.get(page_url)).json()
    return Calm(
        requests=len(traffic.sent),
        verdicts=traffic.verdicts(),
        slowest_seconds=max(each.ended_at - each.began_at for each in traffic.sent),
        ejections=sum(sum(each["ejections"].values()) for each in page["endpoints"]),
    )


async def _done(result: Any) -> None:
    if result is not None:
        await result


@asynccontextmanager
async def _gateway(mode: Mode, setup: Setup) -> AsyncIterator[tuple[str, str, list[ModelServer]]]:
    """Run the gateway; yield its URL, the URL of the endpoints page, and the servers."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="epp-reliability-")))
        servers = [ModelServer(index, folder) for index in range(SERVERS)]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.kill)
        addresses = tuple(f"127.0.0.1:{server.port}" for server in servers)
        options = () if setup is Setup.EPP else ("--outlier-detection=false",)
        epp = await stack.enter_async_context(
            processes.epp(addresses, "--log-level", "error", *options)
        )
        config = GatewayConfig(
            mode=mode,
            endpoints=addresses,
            listen_port=0,
            epp_port=epp.ready["grpc"],
            retries=0 if setup is Setup.NONE else 2,
        )
        document = await asyncio.to_thread(bootstrap, config)
        if setup is Setup.ENVOY:
            for cluster in document["static_resources"]["clusters"]:
                if cluster["name"] == MODEL_SERVERS_CLUSTER:
                    cluster["outlier_detection"] = ENVOYS_DETECTION
        envoy = await stack.enter_async_context(EnvoyProcess(json.dumps(document)))
        host, port = await envoy.listener_address()
        page_url = f"http://127.0.0.1:{epp.ready['metrics']}/debug/endpoints"
        yield f"http://{host}:{port}", page_url, servers


async def run_all(
    faults: Sequence[Fault], modes: Sequence[Mode], setups: Sequence[Setup], rate: float
) -> list[Score]:
    """Run every fault with every setup; setups other than ``epp`` in the first mode only."""
    scores = []
    for fault in faults:
        for setup in setups:
            for mode in modes if setup is Setup.EPP else modes[:1]:
                score = await measure(fault, mode, setup, rate)
                scores.append(score)
                print("  ".join(score.cells()), flush=True)
    return scores


def table(scores: Sequence[Score]) -> Table:
    """Return the scorecard."""
    made = Table(*COLUMNS)
    for score in scores:
        made.add_row(*score.cells())
    return made
