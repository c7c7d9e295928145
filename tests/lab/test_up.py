"""The whole gateway: real fleet, endpoint picker and Envoy processes, started by `up`."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from epp.lab.envoy import EnvoyNotFoundError
from epp.lab.up import (
    PREDICTED_TIME_CONFIG,
    RunningGateway,
    UpError,
    UpSettings,
    default_config,
    up,
)

pytestmark = pytest.mark.integration


def make_settings(**fields: Any) -> UpSettings:
    ports: dict[str, Any] = {"port": 0, "grpc_port": 0, "grpc_health_port": 0, "metrics_port": 0}
    fleet_args = ("--time-scale", "0.05")
    return UpSettings(**ports | {"fleet_size": 2, "fleet_args": fleet_args} | fields)


@pytest.mark.parametrize(
    ("serve_args", "expected"),
    [
        ((), PREDICTED_TIME_CONFIG),
        (("--seed=3",), PREDICTED_TIME_CONFIG),
        (("--config-file=other.yaml",), None),
        (("--config-text", "plugins: []"), None),
        (("--compat=reference",), None),
    ],
)
def test_predicted_times_place_requests_unless_a_configuration_is_given(
    serve_args: tuple[str, ...], expected: Path | None
) -> None:
    assert default_config(serve_args) == expected
    sample = Path("deploy/config/predicted-time.yaml")
    assert PREDICTED_TIME_CONFIG.read_text() == sample.read_text()


def children() -> dict[int, str]:
    """Command lines of this process's children, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
    return found


@asynccontextmanager
async def running(said: list[str]) -> "AsyncIterator[tuple[RunningGateway, asyncio.Task[None]]]":
    stop = asyncio.Event()
    ready: asyncio.Future[RunningGateway] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        up(make_settings(), stop=stop, say=said.append, ready=ready.set_result)
    )
    try:
        either: list[asyncio.Future[Any]] = [task, ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield ready.result(), task
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


async def test_gateway_answers_whole_and_streaming_and_stops_completely() -> None:
    said: list[str] = []
    before = await asyncio.to_thread(children)
    async with running(said) as (gateway, task):
        url = f"{gateway.url}/v1/completions"
        assert url in gateway.curl()
        assert '"stream": true' in gateway.curl(stream=True)
        assert len(gateway.endpoints) == 2
        body = {"model": gateway.model, "prompt": "Hello", "max_tokens": 4}
        client = await asyncio.to_thread(httpx.AsyncClient, trust_env=False, timeout=20)
        async with client:
            whole = await client.post(url, json=body)
            assert whole.status_code == 200
            assert whole.json()["choices"][0]["text"]
            streamed = await client.post(url, json=body | {"stream": True})
            assert streamed.status_code == 200
            assert streamed.text.rstrip().endswith("data: [DONE]")
            metrics = await client.get(gateway.metrics_url)
            assert "request_total" in metrics.text
        assert len(await asyncio.to_thread(children)) == len(before) + 3
    assert task.exception() is None
    assert await asyncio.to_thread(children) == before
    assert [line.split(" ready")[0] for line in said[:3]] == [
        "fleet",
        "endpoint picker",
        "gateway",
    ]
    assert said[-1] == "stopping"


@pytest.mark.parametrize(
    ("command", "name"), [(" epp fleet ", "fleet"), (" epp serve ", "endpoint picker")]
)
async def test_child_that_dies_ends_the_gateway_and_is_named(command: str, name: str) -> None:
    before = await asyncio.to_thread(children)
    async with running([]) as (_, task):
        ours = await asyncio.to_thread(children)
        (pid,) = [pid for pid, line in ours.items() if command in line and pid not in before]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(UpError, match=f"the {name} exited with status -9"):
            await task
    assert await asyncio.to_thread(children) == before


async def test_child_that_cannot_start_is_named() -> None:
    settings = make_settings(serve_args=("--drain-timeout", "nonsense"))
    with pytest.raises(UpError, match="the endpoint picker exited with status 2"):
        await up(settings, stop=asyncio.Event(), say=lambda _: None, ready=lambda _: None)


async def test_stop_during_the_start_stops_at_once() -> None:
    before = await asyncio.to_thread(children)
    stop = asyncio.Event()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        stop.set()  # as soon as the fleet is there

    await up(make_settings(), stop=stop, say=say, ready=lambda _: None)
    assert said[0].startswith("fleet ready")
    assert said[-1] == "stopping"
    assert len(said) == 2
    assert await asyncio.to_thread(children) == before


async def test_missing_envoy_is_reported_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENVOY_PATH", "/nonexistent")
    said: list[str] = []
    with pytest.raises(EnvoyNotFoundError, match=r"\$ENVOY_PATH is not an executable file"):
        await up(make_settings(), stop=asyncio.Event(), say=said.append, ready=lambda _: None)
    assert said == []
