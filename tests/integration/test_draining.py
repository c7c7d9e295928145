"""An endpoint drained by label or command gets no new requests and finishes its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from epp.lab.envoy import Mode
from epp.lab.fleet import Fleet, FleetConfig
from tools.harness.gateway import Gateway, Picker, picking, running, until

from .queueing import CONFIG, ask, waiting

pytestmark = pytest.mark.integration


def label(gateway: Gateway, draining: set[int]) -> None:
    """Write the endpoints file anew."""
    path = gateway.app.settings.endpoints_file or Path()
    document = json.loads(path.read_text())
    for number, entry in enumerate(document["endpoints"]):
        entry["labels"] = {"llm-d.ai/drain": "true"} if number in draining else {}
    path.write_text(json.dumps(document))


async def served(gateway: Gateway, requests: int, prompt: str = "Hello") -> set[tuple[int, str]]:
    """Send requests at once, each with a prompt of its own; return statuses and servers."""
    responses = await asyncio.gather(
        *(gateway.completion(prompt=f"{prompt} {number}") for number in range(requests))
    )
    return {
        (response.status_code, response.headers.get("x-served-by", "")) for response in responses
    }


@pytest.mark.parametrize("mode", Mode)
async def test_a_draining_server_finishes_what_it_has_and_gets_nothing_new(mode: Mode) -> None:
    fleet = FleetConfig(endpoints=2)
    async with running(mode, fleet=fleet, labels={}) as gateway:
        store = gateway.app.pool.store
        long = [
            asyncio.create_task(gateway.completion(prompt=f"{number} differs", max_tokens=200))
            for number in range(16)
        ]
        await until(lambda: all(each.load.in_flight > 0 for each in store.snapshot))
        label(gateway, {0})
        await until(lambda: len(store.serving) == 1)
        assert store.snapshot[0].load.in_flight > 0
        assert await served(gateway, 8) == {(200, "endpoint-1")}
        responses = await asyncio.gather(*long)
        assert {response.status_code for response in responses} == {200}
        assert "endpoint-0" in {response.headers["x-served-by"] for response in responses}
        label(gateway, {0, 1})
        await until(lambda: not store.serving)
        refused = await gateway.completion()
        assert refused.status_code == 503
        assert "all 2 endpoints of the pool are draining; remove the label" in refused.text
        label(gateway, set())
        await until(lambda: len(store.serving) == 2)
        assert {status for status, _ in await served(gateway, 10)} == {200}
        metrics = (
            await gateway.client.get(f"http://127.0.0.1:{gateway.ports.metrics}/metrics")
        ).text
        assert 'llm_d_epp_endpoint_draining{model_server_endpoint="endpoint-0"' in metrics


TOKEN = "s3cret"
TWO = FleetConfig(endpoints=2)
SESSIONS = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: session-affinity-filter
- type: random-picker
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: session-affinity-filter
  - pluginRef: random-picker
"""


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of an endpoint picker that takes changing calls."""
    path = tmp_path_factory.mktemp("admin") / "token"
    path.write_text(TOKEN)
    return {"enable_admin_writes": True, "admin_token_file": path}


@pytest_asyncio.fixture
async def two(admin: dict[str, Any]) -> AsyncIterator[Gateway]:
    async with running(fleet=TWO, labels={}, serve=admin) as gateway:
        yield gateway


async def drain(
    picker: Picker, endpoint: str, *, undo: bool = False, token: str = TOKEN
) -> httpx.Response:
    """Make the changing call of ``epp drain``."""
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        return await client.post(
            f"http://127.0.0.1:{picker.ports.metrics}/debug/endpoints/drain",
            params={"endpoint": endpoint, "undo": str(undo).lower()},
            headers={"authorization": f"Bearer {token}"} if token else {},
        )


async def test_an_endpoint_is_drained_by_a_call_while_it_streams(two: Gateway) -> None:
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 100, "stream": True}
    async with two.client.stream("POST", f"{two.url}/v1/completions", json=body) as streamed:
        lines = streamed.aiter_lines()
        text = [await anext(lines)]
        busy = streamed.headers["x-served-by"]
        other = {"endpoint-0": "endpoint-1", "endpoint-1": "endpoint-0"}[busy]
        drained = (await drain(two, busy)).json()
        assert (drained["endpoint"]["draining"], drained["serving"]) == ("epp drain", 1)
        assert drained["endpoint"]["in_flight"] == 1
        assert await served(two, 16, "drained") == {(200, other)}
        text += [line async for line in lines]
    assert "data: [DONE]" in text[-2:]
    await two.settled()
    url = f"http://127.0.0.1:{two.ports.metrics}"
    page = (await two.client.get(f"{url}/debug/endpoints")).json()
    shown = {each["name"].rpartition("/")[2]: each for each in page["endpoints"]}
    assert [shown[busy][key] for key in ("state", "share", "in_flight")] == ["unwatched", 0.0, 0]
    assert shown[other]["draining"] == ""
    metrics = (await two.client.get(f"{url}/metrics")).text
    assert 'llm_d_epp_ready_endpoints{name="default"} 1.0' in metrics
    of_busy = f'{{model_server_endpoint="{busy}",name="default"}}'
    assert f"llm_d_epp_endpoint_draining{of_busy} 1.0" in metrics
    assert (await drain(two, busy, undo=True)).json()["serving"] == 2
    assert await served(two, 16, "undrained") == {(200, busy), (200, other)}


async def test_if_all_are_drained_requests_are_refused_with_the_reason(two: Gateway) -> None:
    for server in two.fleet.servers:
        assert (await drain(two, server.address)).status_code == 200
    refused = await two.completion()
    assert (refused.status_code, refused.headers["x-llm-d-request-dropped-reason"]) == (
        503,
        "rejected-no-endpoints",
    )
    assert "all 2 endpoints of the pool are draining; run `epp drain --undo" in refused.text


async def test_a_client_without_the_token_drains_nothing(two: Gateway) -> None:
    for token in ("", "other"):
        assert (await drain(two, "endpoint-0", token=token)).status_code == 401
    assert len(two.app.pool.store.serving) == 2


async def test_calls_are_refused_unless_they_are_enabled(admin: dict[str, Any]) -> None:
    off = {"admin_token_file": admin["admin_token_file"]}
    async with Fleet(TWO) as fleet, picking(fleet, serve=off) as picker:
        response = await drain(picker, fleet.servers[0].address)
        assert response.status_code == 403
        assert "--enable-admin-writes" in response.text
        assert len(picker.app.pool.store.serving) == 2


async def test_a_session_moves_from_a_drained_endpoint_and_stays_moved(
    admin: dict[str, Any],
) -> None:
    async with running(fleet=TWO, labels={}, serve=admin, config=SESSIONS) as gateway:
        url = f"{gateway.url}/v1/completions"
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}

        async def ask_in_session(token: str) -> tuple[str, str]:
            headers = {"x-session-token": token} if token else {}
            response = await gateway.client.post(url, json=body, headers=headers)
            return response.headers["x-served-by"], response.headers["x-session-token"]

        first, token = await ask_in_session("")
        assert [await ask_in_session(token) for _ in range(8)] == [(first, token)] * 8
        await drain(gateway, first)
        second, moved = await ask_in_session(token)
        assert second != first
        await drain(gateway, first, undo=True)
        assert [await ask_in_session(moved) for _ in range(8)] == [(second, moved)] * 8


async def test_requests_that_wait_go_on_when_an_endpoint_is_undrained(
    admin: dict[str, Any],
) -> None:
    config = CONFIG + "  noEndpointRequestTTL: 200ms\n"
    # No scrape wakes flow control during the test.
    async with running(
        fleet=FleetConfig(endpoints=1), labels={}, serve=admin, config=config, refresh_seconds=600
    ) as gateway:
        await drain(gateway, "endpoint-0")
        expired = await ask(gateway)
        assert expired.status_code == 503
        assert "flow control: the only endpoint of the pool is draining; run" in expired.text
        patient = ask(gateway, {"x-llm-d-request-ttl-ms": "10000"})
        await waiting(gateway, 1)
        await drain(gateway, "endpoint-0", undo=True)
        assert (await patient).status_code == 200
