"""The API server is killed and restarted while requests pass a real Envoy."""

import asyncio
import os
import time
from pathlib import Path

import httpx
import pytest
from kube.pickers import (
    LABELS,
    addresses,
    cluster_picker,
    gateway,
    names,
    pod_of,
    pod_servers,
    pool,
)

from tools.harness.gateway import until
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer

SECONDS = float(os.environ.get("OUTAGE_SECONDS", "5"))
SEEN_SECONDS = 2.0
"""A change is to be in use within this time after the return of the API server."""
CLIENTS = 4


async def test_no_request_fails_while_the_api_server_is_away_and_changes_are_seen_at_its_return(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with (
        pod_servers(4, time_scale=0.02) as servers,
        cluster_picker(api_server, monkeypatch, tmp_path, pool(namespace)) as picker,
        gateway(picker, servers) as url,
        httpx.AsyncClient(timeout=15.0, trust_env=False) as client,
    ):
        await namespace.create_pool("pool", LABELS, [servers[0].port])
        await namespace.create_pods(*(pod_of(number) for number in range(3)))
        await until(lambda: len(addresses(picker)) == 3)
        statuses: list[int] = []
        is_over = asyncio.Event()

        async def ask() -> None:
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
            while not is_over.is_set():
                response = await client.post(f"{url}/v1/completions", json=body)
                statuses.append(response.status_code)

        async def be_away() -> float:
            """Kill the server, start it again; return when a change is in use."""
            await asyncio.to_thread(api_server.kill)
            killed_at = time.monotonic()
            # The length of the outage is what is tested; nothing is waited for.
            await asyncio.sleep(SECONDS)
            assert picker.app.is_ready
            assert len(addresses(picker)) == 3
            await asyncio.to_thread(api_server.start)
            returned_at = time.monotonic()
            # The first changes: a pod comes, another one goes.
            await namespace.create_pods(pod_of(3))
            await namespace.delete_pods("vllm-0")
            expected = [f"vllm-{number}-rank-0" for number in (1, 2, 3)]
            await until(lambda: names(picker) == expected)
            seen_at = time.monotonic()
            is_over.set()
            with capsys.disabled():
                print(
                    f"\nAPI server away for {returned_at - killed_at:.1f} s:"
                    f" {len(statuses)} requests; changes in use"
                    f" {seen_at - returned_at:.2f} s after its return"
                )
            return seen_at - returned_at

        async with asyncio.TaskGroup() as tasks:
            outage = tasks.create_task(be_away())
            for _ in range(CLIENTS):
                tasks.create_task(ask())
        assert set(statuses) == {200}
        assert len(statuses) > SECONDS * CLIENTS
        assert outage.result() < SEEN_SECONDS + 5.0  # a busy machine takes longer
