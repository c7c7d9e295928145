"""Tokens, adapters and other paths besides generation."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.lab.fleet import EngineConfig, Fleet, ServerFaults
from epp.lab.fleet.tokenizer import token_ids, token_text

DATA = Path(__file__).parent / "data"
MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def client(make_fleet: MakeFleet, make_client: MakeClient) -> httpx.AsyncClient:
    return make_client(await make_fleet(engine=EngineConfig(adapters=("ad1",))))


async def test_tokens_have_the_fields_of_the_recording(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    prompt = {"model": "tiny", "prompt": "hello there", "return_token_strs": True}
    response = (await client.post("/tokenize", json=prompt)).json()
    recorded = json.loads((DATA / "tokenize.json").read_text())
    assert list(response) == list(recorded)
    assert (response["count"], response["max_model_len"]) == (3, 8192)
    assert response["token_strs"] == ["hell", "o th", "ere"]
    back = await client.post("/detokenize", json={"model": "tiny", "tokens": response["tokens"]})
    assert back.json() == {"prompt": "hello there"}


async def test_tokens_of_a_chat_are_those_of_its_rendered_prompt(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    chat = {"messages": [{"role": "user", "content": "hello there"}]}
    tokens = (await client.post("/tokenize", json=chat)).json()["tokens"]
    rendered = (await client.post("/v1/chat/completions/render", json=chat)).json()
    assert tokens == rendered["token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/tokenize", {}, 400, "One of prompt and messages is required"),
        ("/tokenize", {"prompt": 3}, 400, "prompt"),
        ("/tokenize", {"messages": 3}, 400, "messages"),
        ("/tokenize", {"prompt": "a", "model": "nope"}, 404, "`nope`"),
        ("/detokenize", {"tokens": [-1]}, 400, "There is no token -1"),
        ("/detokenize", {"tokens": [2**32]}, 400, "There is no token"),
        ("/detokenize", {"tokens": [1], "model": "nope"}, 404, "`nope`"),
        ("/v1/load_lora_adapter", {"lora_name": "a"}, 400, "must be provided"),
        ("/v1/load_lora_adapter", {"lora_name": 3}, 400, "lora_name"),
        ("/v1/load_lora_adapter", {"lora_name": "ad1", "lora_path": "p"}, 400, "already been"),
        ("/v1/load_lora_adapter", {"lora_name": "tiny", "lora_path": "p"}, 400, "base model"),
        ("/v1/unload_lora_adapter", {}, 400, "needs to be provided"),
        ("/v1/unload_lora_adapter", {"lora_name": "nope"}, 404, "cannot be found"),
    ],
)
async def test_invalid_requests_are_refused(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


@given(st.text())
def test_the_text_of_tokens_is_the_text(text: str) -> None:
    # The fake tokenizer cannot tell a NUL at the beginning of a token from a shorter token.
    text = text.replace("\0", "")
    assert token_text(token_ids(text.encode())) == text


async def test_an_adapter_is_loaded_served_and_unloaded(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    client = make_client(fleet)
    adapter = {"lora_name": "ad9", "lora_path": "/adapters/ad9"}
    request = {"model": "ad9", "prompt": "a"}

    async def models() -> list[str]:
        return [each["id"] for each in (await client.get("/v1/models")).json()["data"]]

    assert (await client.post("/v1/completions", json=request)).status_code == 404
    assert "lora_requests_info" not in (await client.get("/metrics")).text
    loaded = await client.post("/v1/load_lora_adapter", json=adapter)
    assert loaded.text == "Success: LoRA adapter 'ad9' added successfully."
    assert await models() == ["tiny", "ad9"]
    assert (await client.post("/v1/completions", json=request)).json()["model"] == "ad9"
    assert 'running_lora_adapters="ad9"' in (await client.get("/metrics")).text
    again = await client.post("/v1/load_lora_adapter", json={**adapter, "load_inplace": True})
    assert again.status_code == 200
    unloaded = await client.post("/v1/unload_lora_adapter", json={"lora_name": "ad9"})
    assert unloaded.text == "Success: LoRA adapter 'ad9' removed successfully."
    assert await models() == ["tiny"]
    assert (await client.post("/v1/completions", json=request)).status_code == 404


async def test_a_restart_forgets_the_adapters_loaded_at_run_time(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet(engine=EngineConfig(adapters=("ad1",)))
    adapter = {"lora_name": "ad9", "lora_path": "/adapters/ad9"}
    await make_client(fleet).post("/v1/load_lora_adapter", json=adapter)
    await fleet.servers[0].inject(ServerFaults(restarts=1))
    models = (await make_client(fleet).get("/v1/models")).json()["data"]
    assert [each["id"] for each in models] == ["tiny", "ad1"]
