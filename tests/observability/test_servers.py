"""Metrics over real HTTP."""

import asyncio
import socket
import socketserver
from collections.abc import Iterator

import httpx
import pytest

from epp.observability import Metrics, MetricsServer, PortError


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_an_address_of_another_machine_is_named() -> None:
    host = "203.0.113.7"  # RFC 5737: no machine has it
    with pytest.raises(PortError, match=f"{host} port 0.*--host"):
        MetricsServer(Metrics(), host=host, port=0)


async def test_metrics_are_served_over_http() -> None:
    metrics = Metrics()
    metrics.internal_faults.inc()
    async with MetricsServer(metrics, host="127.0.0.1", port=0) as server:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{server.port}/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain")
        assert "llm_d_epp_internal_faults_total 1.0" in answer.text.splitlines()
        port = server.port
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)


async def test_its_end_does_not_wait_until_its_thread_looks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hour = (3600.0,)
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", hour)
    async with MetricsServer(Metrics(), host="127.0.0.1", port=0):
        pass


def test_a_taken_metrics_port_is_named(taken_port: int) -> None:
    with pytest.raises(PortError, match=f"port {taken_port}.*--metrics-port"):
        MetricsServer(Metrics(), host="127.0.0.1", port=taken_port)
