"""A gateway survives idle connections that crowd its ports, with few descriptors or none."""

import asyncio
import json
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

CROWD = 1200
LIMIT = 4096
_NEEDED = 4 * CROWD
_SERVE = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from epp.cli import cli
cli()
"""
SERVING = health_pb2.HealthCheckResponse.SERVING
UNFINISHED = {
    "ext_proc": b"PRI * HTTP/2.0\r\n",
    "health": b"PRI * HTTP/2.0\r\n",
    "metrics": b"GET /metrics HTTP/1.1\r\n",
}

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def _many_descriptors() -> Iterator[None]:
    """Let this process have the clients' end of all those connections."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < _NEEDED:
        pytest.skip("this process may not have enough descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@dataclass
class Gateway:
    process: asyncio.subprocess.Process
    ports: dict[str, int]
    log_file: Path

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))  # noqa: PTH208

    @property
    def cpu_seconds(self) -> float:
        """User and system time, proc(5)."""
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def limit_descriptors(self, count: int) -> None:
        resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (count, LIMIT))

    async def probe(self) -> int:
        """Ask as a kubelet does, on a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = f"127.0.0.1:{self.ports['health']}"
        async with aio.insecure_channel(target, options=options) as channel:
            return await check(channel)

    async def metrics(self) -> dict[str, float]:
        async with httpx.AsyncClient(trust_env=False) as client:
            response = await client.get(f"http://127.0.0.1:{self.ports['metrics']}/metrics")
        lines = (line.rsplit(" ", 1) for line in response.text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in lines}

    def log_lines(self, event: str) -> list[str]:
        return [line for line in self.log_file.read_text().splitlines() if event in line]


async def check(channel: aio.Channel) -> int:
    question = health_pb2.HealthCheckRequest(service="liveness")
    response = await health_pb2_grpc.HealthStub(channel).Check(question, timeout=20)
    return int(response.status)


@asynccontextmanager
async def gateway(folder: Path, limit: int) -> AsyncIterator[tuple[Gateway, aio.Channel]]:
    """A gateway with so many descriptors, and Envoy's connection to it with a stream."""
    ready, log_file = folder / "ready", folder / "log"
    options = [
        *("--endpoint", "127.0.0.1:1", "--host", "127.0.0.1", "--ready-file", str(ready)),
        *("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"),
        *("--secure-serving=false", "--health-checking"),
    ]
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _SERVE, str(limit), "serve", *options), stdout=log, stderr=log
        )
    try:
        while not ready.exists():
            assert process.returncode is None, log_file.read_text()
            await asyncio.sleep(0.02)
        ports = json.loads(ready.read_text())
        ports["ext_proc"] = ports.pop("grpc")
        async with aio.insecure_channel(f"127.0.0.1:{ports['ext_proc']}") as envoy:
            watch = health_pb2_grpc.HealthStub(envoy).Watch(
                health_pb2.HealthCheckRequest(service="liveness")
            )
            assert (await watch.read()).status == SERVING
            yield Gateway(process, ports, log_file), envoy
            assert not watch.done()
            watch.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        assert await process.wait() == 0


@contextmanager
def crowd(port: int, sent: bytes, count: int = CROWD) -> Iterator[list[socket.socket]]:
    """Connections that say so much and no more."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            with suppress(ConnectionError):
                client.sendall(sent)
            made.append(client)
        yield made


@pytest.mark.parametrize("is_slow", [False, True], ids=["silent", "slow"])
async def test_idle_connections_at_every_port_take_nothing_from_envoy_and_probes(
    tmp_path: Path, is_slow: bool
) -> None:
    async with gateway(tmp_path, 512) as (served, envoy):
        threads = served.threads
        with ExitStack() as stack:
            for name, port in served.ports.items():
                stack.enter_context(crowd(port, UNFINISHED[name] if is_slow else b""))
            assert await served.probe() == SERVING
            assert await check(envoy) == SERVING
            metrics = await served.metrics()
            assert served.descriptors <= 512 - 64, "the reserve is left alone"
            assert served.threads <= threads + 4, "a default executor may have grown"
        for name in served.ports:
            labels = f'{{port="{name}",reason="evicted"}}'
            assert metrics[f"llm_d_epp_port_connections_closed_total{labels}"] > 0
            assert metrics[f'llm_d_epp_port_accept_pauses_total{{port="{name}"}}'] == 0
        (line,) = served.log_lines("too few descriptors, ports have fewer")
        assert json.loads(line)["limit"] == 512


async def test_a_process_without_descriptors_serves_those_who_are_connected_and_does_not_spin(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path, LIMIT) as (served, envoy):
        served.limit_descriptors(served.descriptors + 8)
        loop = asyncio.get_running_loop()
        with ExitStack() as stack:
            for name, port in served.ports.items():
                stack.enter_context(crowd(port, UNFINISHED[name], 100))
            began, cpu_seconds = loop.time(), served.cpu_seconds
            for _ in range(20):
                assert await check(envoy) == SERVING
            # It is accepted when unfinished connections have made room for it.
            assert await served.probe() == SERVING
            used, passed = served.cpu_seconds - cpu_seconds, loop.time() - began
            # Spinning takes all of a core; the rest is for 21 questions on a busy machine.
            assert used < 0.5 * passed + 1
        served.limit_descriptors(LIMIT)
        metrics = await served.metrics()
        pauses = [
            metrics[f'llm_d_epp_port_accept_pauses_total{{port="{name}"}}'] for name in served.ports
        ]
        assert sum(pauses) > 0
        # One line a minute and port.
        assert 1 <= len(served.log_lines("connections could not be accepted")) <= 3
        assert served.log_file.stat().st_size < 20_000
        assert await served.probe() == SERVING
        assert await check(envoy) == SERVING
