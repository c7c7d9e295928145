"""The render paths of a fake server respond in vLLM's format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest

from epp.lab.fleet import Fleet

MakeFleet = Callable[..., Awaitable[Fleet]]
MakeClient = Callable[..., httpx.AsyncClient]

CHAT = "/v1/chat/completions/render"
COMPLETION = "/v1/completions/render"
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def chat(*parts: object) -> dict[str, object]:
    return {"model": "tiny", "messages": [{"role": "user", "content": list(parts)}]}


async def test_a_chat_is_rendered_and_a_list_of_prompts_is_a_list(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    client = make_client(fleet)
    response = (await client.post(CHAT, json=chat({"type": "text", "text": "hello there"}))).json()
    # "<|user|>\nhello there\n<|assistant|>\n" has 35 bytes
    assert len(response["token_ids"]) == 9
    assert response["features"] is None
    listed = (await client.post(COMPLETION, json={"model": "tiny", "prompt": "abcd"})).json()
    assert [each["token_ids"] for each in listed] == [[int.from_bytes(b"abcd", "big")]]
    assert fleet.servers[0].counters.rendered == 2
    assert fleet.servers[0].counters.received == 0


async def test_media_are_placeholders_with_a_hash(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    client = make_client(await make_fleet())
    response = (await client.post(CHAT, json=chat(IMAGE, IMAGE))).json()
    hashes = response["features"]["mm_hashes"]["image"]
    assert hashes[0] == hashes[1]
    first, second = response["features"]["mm_placeholders"]["image"]
    assert second["offset"] == first["offset"] + first["length"]
    assert second["offset"] + second["length"] == len(response["token_ids"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b'{"model": "other", "messages": []}', 404, id="another model"),
        pytest.param(b"{", 400, id="invalid JSON"),
        pytest.param(b'{"model": "tiny"}', 400, id="no messages"),
    ],
)
async def test_a_bad_request_is_refused(
    make_fleet: MakeFleet, make_client: MakeClient, body: bytes, status: int
) -> None:
    client = make_client(await make_fleet())
    assert (await client.post(CHAT, content=body)).status_code == status


async def test_faults_are_for_render_requests_alone(
    make_fleet: MakeFleet, make_client: MakeClient
) -> None:
    fleet = await make_fleet()
    client, faults = make_client(fleet), fleet.servers[0].faults
    faults.render_status = 503
    assert (await client.post(CHAT, json=chat())).status_code == 503
    assert (await client.get("/v1/models")).status_code == 200
    faults.render_status, faults.garbled_render = None, b"junk"
    assert (await client.post(CHAT, json=chat())).content == b"junk"
