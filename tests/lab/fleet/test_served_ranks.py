"""A server with data-parallel ranks: which one serves a request, and what each reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.lab.fleet import (
    EngineConfig,
    EngineType,
    Fleet,
    FleetConfig,
    FleetConfigError,
    ServerFaults,
)

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]


async def complete(client: httpx.AsyncClient, rank: str | None = None) -> httpx.Response:
    headers = {} if rank is None else {"x-data-parallel-rank": rank}
    return await client.post("/v1/completions", json={"prompt": "p" * 400}, headers=headers)


def ranks_of(fleet: Fleet) -> list[int]:
    return [json.loads(line)["rank"] for line in fleet.log.lines().splitlines()]


async def tokens_by_rank(client: httpx.AsyncClient) -> dict[str, float]:
    page = (await client.get("/metrics")).text
    families = {each.name: each for each in text_string_to_metric_families(page)}
    samples = families["vllm:generation_tokens"].samples
    return {each.labels["engine"]: each.value for each in samples if each.name.endswith("_total")}


async def test_the_header_chooses_the_rank(make_fleet: MakeFleet, make_client: MakeClient) -> None:
    fleet = await make_fleet(ranks=3)
    client = make_client(fleet)
    cached: list[int] = []
    for rank in ("2", "2", "0"):
        usage: dict[str, Any] = (await complete(client, rank)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert cached == [0, 96, 0]  # each rank has its own cache
    assert ranks_of(fleet) == [2, 2, 0]
    assert await tokens_by_rank(client) == {"0": 16, "1": 0, "2": 32}


async def test_without_it_the_least_loaded_rank_is_chosen(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(ranks=2)
    await asyncio.gather(*(complete(make_client(fleet)) for _ in range(4)))
    assert sorted(ranks_of(fleet)) == [0, 0, 1, 1]


@pytest.mark.parametrize("rank", ["2", "-1", "one", "9" * 5000])
async def test_a_rank_that_does_not_exist_is_refused(
    make_fleet: MakeFleet, make_client: MakeClient, rank: str
) -> None:
    response = await complete(make_client(await make_fleet(ranks=2)), rank)
    assert response.status_code == 400
    assert "is out of range [0, 2)" in response.json()["error"]["message"]


async def test_series_without_a_rank_are_there_once(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(ranks=2, engine=EngineConfig(adapters=("ad1",)))
    client = make_client(fleet)
    for rank in ("0", "1"):
        assert (await complete(client, rank)).status_code == 200
    page = (await client.get("/metrics")).text
    series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert sum(each.startswith("vllm:num_requests_running{") for each in series) == 2
    assert sum(each.startswith("vllm:lora_requests_info{") for each in series) == 1  # no adapter


async def test_faults_and_adapters_are_those_of_all_ranks(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(ranks=2)
    client = make_client(fleet)
    await client.post("/v1/load_lora_adapter", json={"lora_name": "ad9", "lora_path": "/a"})
    await fleet.servers[0].inject(ServerFaults(speed=0.5))
    process, _ = fleet.servers[0]._running()
    assert [engine.config.adapters for engine in process.engines] == [("ad9",)] * 2
    assert [engine.pace.factor for engine in process.engines] == [0.5, 0.5]


def test_ranks_are_those_of_vllm() -> None:
    with pytest.raises(FleetConfigError, match="ranks must be at least 1, got 0"):
        FleetConfig(ranks=0)
    with pytest.raises(FleetConfigError, match="ranks are simulated for vLLM only"):
        FleetConfig(ranks=2, engine_type=EngineType.SGLANG)
