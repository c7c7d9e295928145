"""Lean mode with content-length: the model server gets the length of the body that it is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from epp.lab.envoy import Mode
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.service import Service
from tools.harness.gateway import NO_FAULTS, ROOMY, running

from .test_body_modes import having

pytestmark = pytest.mark.integration

OBJECTS = (Path(__file__).parents[2] / "deploy/objects/chat.yaml",)


def keep_content_length(document: dict[str, Any]) -> None:
    (config,) = having(document, "processing_mode")
    config["allow_content_length_header"] = True


@pytest.mark.parametrize(
    "model", [pytest.param("tiny", id="unchanged"), pytest.param("chat", id="rewritten")]
)
@pytest.mark.parametrize("chars", [10, 1_000_000], ids=["short", "1 MB"])
async def test_a_model_server_gets_the_length_of_the_body_that_it_is_sent(
    model: str, chars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[Exchange] = []
    serve = Service._serve_generation  # the fake tells nobody what it was sent

    def note_and_serve(service: Service, exchange: Exchange) -> None:
        arrived.append(exchange)
        serve(service, exchange)

    monkeypatch.setattr(Service, "_serve_generation", note_and_serve)
    async with running(
        Mode.LEAN, fleet=ROOMY, objects=OBJECTS, edit=keep_content_length
    ) as gateway:
        response = await gateway.completion(model=model, prompt="x" * chars)
        assert response.status_code == 200, response.text
        assert await gateway.faults() == NO_FAULTS
    (exchange,) = arrived
    assert json.loads(exchange.body)["model"] == "tiny"
    assert exchange.headers[b"content-length"] == str(len(exchange.body)).encode()
    assert b"transfer-encoding" not in exchange.headers
