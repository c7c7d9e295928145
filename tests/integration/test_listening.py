"""Envoy reaches the EPP over a socket file and with certificates, and checks its health."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_layer.certificates import make_ca, make_leaf

from epp.app import Transport
from epp.lab.envoy import Mode
from epp.lab.envoy.names import EPP_CLUSTER
from epp.lab.fleet import FleetConfig
from epp.transport import TlsSettings
from tools.harness.gateway import NO_FAULTS, Gateway, in_each_mode, running

from .health_checks import ask_for_health, epp_clusters

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]


async def is_served(gateway: Gateway) -> None:
    """Four responses at once, each of them whole."""
    responses = await asyncio.gather(*(gateway.completion(stream=True) for _ in range(4)))
    assert [response.status_code for response in responses] == [200] * 4
    assert all(response.text.endswith("data: [DONE]\n\n") for response in responses)
    assert await gateway.faults() == NO_FAULTS


@in_each_mode
@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
async def test_a_socket_file_leads_to_the_epp_and_a_drain_over_it_truncates_nothing(
    mode: Mode, transport: Transport, tls: bool, tmp_path: Path
) -> None:
    path = tmp_path / "epp.sock"
    fleet = FleetConfig(endpoints=2)
    async with running(
        mode, transport=transport, tls=tls, fleet=fleet, serve={"socket_file": path}
    ) as gateway:
        await is_served(gateway)
        if mode is not Mode.FULL_DUPLEX or transport == "http2":
            # There Envoy forgets the chunk that is on its way when a stream ends, and grpc.aio ends
            # it some time after the response to the chunk before.
            await drain_amid_a_response(gateway)
        assert gateway.open_streams() == 0


async def drain_amid_a_response(gateway: Gateway) -> None:
    body = {
        "model": "tiny",
        "prompt": "Hello",
        "max_tokens": 30,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with gateway.client.stream(
        "POST", f"{gateway.url}/v1/completions", json=body
    ) as response:
        lines = response.aiter_lines()
        events = [await anext(lines)]
        await gateway.app.service.drain(0.01)
        events += [line async for line in lines if line]
    *chunks, usage, done = [event.removeprefix("data: ") for event in events]
    text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
    assert len(text) == 4 * json.loads(usage)["usage"]["completion_tokens"] == 120
    assert done == "[DONE]"
    assert await gateway.faults() == NO_FAULTS


async def test_envoy_shows_the_certificate_that_the_epp_asks_for(
    transport: Transport, tmp_path: Path
) -> None:
    authority = make_ca()
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    chain, key = make_leaf(authority, tmp_path, address="127.0.0.1")

    def show_certificate(document: dict[str, Any]) -> None:
        for cluster in epp_clusters(document):
            context = cluster["transport_socket"]["typed_config"]
            context["common_tls_context"]["tls_certificates"] = [
                {
                    "certificate_chain": {"filename": str(chain)},
                    "private_key": {"filename": str(key)},
                }
            ]

    tls = TlsSettings(client_authorities=tmp_path / "ca.crt")
    async with running(transport=transport, tls=tls, edit=show_certificate) as gateway:
        await is_served(gateway)
    async with running(transport=transport, tls=tls) as gateway:
        refused = await gateway.completion()
        assert refused.status_code == 500


async def stats_when(gateway: Gateway, holds: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Return what Envoy has counted of its health checks, as soon as ``holds``."""
    prefix = f"cluster.{EPP_CLUSTER}."
    names = ("health_check.success", "health_check.failure", "membership_healthy")
    async with asyncio.timeout(15):
        while True:
            all_of_them = await gateway.envoy.stats(prefix)
            found = {name: all_of_them[prefix + name] for name in names}
            if holds(found):
                return found
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "TLS"])
async def test_envoys_health_check_is_answered_on_the_ext_proc_port(
    transport: Transport, tls: bool
) -> None:
    async with running(
        transport=transport, tls=tls, serve={"health_checking": True}, edit=ask_for_health
    ) as gateway:
        found = await stats_when(gateway, lambda found: found["health_check.success"] >= 3)
        assert (found["health_check.failure"], found["membership_healthy"]) == (0, 1)
        await is_served(gateway)
        gateway.app._draining = True  # not ready
        found = await stats_when(gateway, lambda found: found["membership_healthy"] == 0)
        assert found["health_check.failure"] > 0
        gateway.app._draining = False
        await stats_when(gateway, lambda found: found["membership_healthy"] == 1)
        assert gateway.open_streams() == 0


async def test_without_health_checking_envoy_learns_that_there_is_none() -> None:
    async with running(edit=ask_for_health) as gateway:
        found = await stats_when(gateway, lambda found: found["health_check.failure"] > 0)
        assert found["health_check.success"] == 0
