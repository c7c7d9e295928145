"""A fake SGLang server: its metrics and its own API."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.lab.fleet import Engine, EngineConfig, EngineType, Fleet, GenerationRequest
from epp.lab.fleet.sglang_page import SglangPage
from epp_plugins.data_sources.engines import SGLANG

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]
CONFIG = EngineConfig(adapters=("ad1", "ad2"), step_seconds=1.0, max_num_seqs=1)


def served(engine: Engine) -> str:
    """Serve two equal prompts after each other, and queue a third."""
    page = SglangPage(engine, model="tiny")
    request = GenerationRequest(id="r", prompt=b"a" * 320, max_tokens=2)
    for at in (0.0, 100.0, 200.0, 200.0):
        engine.run_until(at)
        engine.submit(request, at)
    return page.render().decode()


def test_values_follow_the_engine() -> None:
    families = {each.name: each for each in text_string_to_metric_families(served(Engine(CONFIG)))}

    def value(name: str) -> float:
        (sample,) = families[name].samples
        return float(sample.value)

    assert value("sglang:num_running_reqs") == 1
    assert value("sglang:num_queue_reqs") == 1
    assert value("sglang:token_usage") == pytest.approx(5 / 2000)
    assert value("sglang:cache_hit_rate") == pytest.approx(2 * 64 / 240)
    assert value("sglang:prompt_tokens") == 160
    assert value("sglang:cached_tokens") == 64
    assert value("sglang:num_requests") == 2
    assert value("sglang:lora_pool_slots_total") == 2
    (config,) = families["sglang:cache_config_info"].samples
    assert (config.labels["page_size"], config.labels["num_pages"]) == ("16", "2000")
    first = families["sglang:time_to_first_token_seconds"]
    assert first.type == "histogram"
    buckets = {each.labels.get("le"): each.value for each in first.samples}
    assert (buckets["1.0"], buckets["2.0"], buckets["+Inf"]) == (0, 2, 2)


def test_labels_are_those_of_the_scheduler_and_of_the_tokenizer() -> None:
    page = served(Engine(CONFIG))
    rank = 'engine_type="unified",moe_ep_rank="0",model_name="tiny",pp_rank="0",tp_rank="0"'
    assert f"sglang:num_running_reqs{{{rank}}} 1.0\n" in page
    assert 'sglang:generation_tokens_total{model_name="tiny"} 4.0\n' in page


def test_a_server_without_adapters_has_no_lora_pool() -> None:
    page = SglangPage(Engine(EngineConfig()), model="tiny").render(without=("num_queue_reqs",))
    assert b"lora_pool" not in page
    assert b"num_queue_reqs" not in page


def test_the_page_has_what_the_endpoint_picker_reads() -> None:
    page = served(Engine(CONFIG))
    read = [*SGLANG.waiting, *SGLANG.running, *SGLANG.kv_cache_usage, SGLANG.cache_config]
    assert all(f"\n{spec.family.decode()}{{" in page for spec in read if spec is not None)


async def test_generate_returns_text_tokens_and_counts(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet(engine_type=EngineType.SGLANG))
    body = {"text": "p" * 400, "sampling_params": {"max_new_tokens": 3}, "rid": "mine"}
    response = (await client.post("/generate", json=body)).json()
    assert len(response["output_ids"]) == 3
    assert len(response["text"]) == 12
    meta = response["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["cached_tokens"]) == ("mine", 100, 0)
    assert meta["finish_reason"] == {"type": "length", "length": 3}
    tokens = {**body, "text": None, "input_ids": [1, 2, 3]}
    assert (await client.post("/generate", json=tokens)).json()["meta_info"]["prompt_tokens"] == 3


async def test_events_of_generate_repeat_the_text(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet(engine_type=EngineType.SGLANG))
    body = {"text": "a", "sampling_params": {"max_new_tokens": 3}, "stream": True}
    text = (await client.post("/generate", json=body)).text
    *events, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    responses = [json.loads(event.removeprefix("data: ")) for event in events]
    assert [response["meta_info"]["completion_tokens"] for response in responses] == [1, 2, 3]
    assert responses[2]["text"].startswith(responses[1]["text"])
    assert [response["meta_info"]["finish_reason"] is None for response in responses] == [
        True,
        True,
        False,
    ]


async def test_other_paths_of_sglang(make_fleet: MakeFleet, make_client: MakeClient) -> None:
    client = make_client(await make_fleet(engine_type=EngineType.SGLANG))
    assert (await client.get("/health_generate")).status_code == 200
    assert (await client.get("/v1/models")).json()["data"][0]["owned_by"] == "sglang"
    assert (await client.get("/metrics")).text.count("sglang:") > 50
    refused = await client.post("/generate", json={"sampling_params": {}})
    assert refused.status_code == 400
    assert "text or input_ids" in refused.text
    vllm = make_client(await make_fleet())
    assert (await vllm.post("/generate", json={"text": "a"})).status_code == 404
