"""Every pair of body modes that the endpoint picker supports, with a real Envoy."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from epp.doctor import Gateway as Doctored
from epp.doctor import examine_envoy
from epp.doctor.sources import source
from epp.lab.envoy import Mode
from tools.harness.gateway import NO_FAULTS, ROOMY, Gateway, running

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
]

OBJECTS = (Path(__file__).parents[2] / "deploy/objects/chat.yaml",)
"""Clients ask for ``chat``, the model server knows ``tiny``."""
MODES = ["NONE", "STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]


def having(document: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield every mapping of a bootstrap that has ``key``."""
    if isinstance(document, dict):
        if key in document:
            yield document
        document = list(document.values())
    if isinstance(document, list):
        for value in document:
            yield from having(value, key)


def set_to(
    request: str, response: str, *, sends_ahead: bool = False
) -> Callable[[dict[str, Any]], None]:
    """Return what sets Envoy's filter to a pair of body modes."""

    def edit(document: dict[str, Any]) -> None:
        (config,) = having(document, "processing_mode")
        modes = {"request_body_mode": request, "response_body_mode": response}
        config["processing_mode"] |= modes | {"request_trailer_mode": "SEND"}
        config["send_body_without_waiting_for_header_response"] = sends_ahead

    return edit


def model_in(response: httpx.Response) -> str:
    model: str = response.json()["model"]
    return model


def listener_of_each_pair(document: dict[str, Any]) -> None:
    """Replace the listener by one for each pair of modes, which has its name."""
    (listener,) = document["static_resources"]["listeners"]
    listeners = []
    for modes in product(MODES, repeat=2):
        made = deepcopy(listener) | {"name": " ".join(modes)}
        set_to(*modes, sends_ahead=modes[0] == "STREAMED")(made)
        listeners.append(made)
    document["static_resources"]["listeners"] = listeners


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def every_pair() -> AsyncIterator[Gateway]:
    async with running(
        Mode.FULL_DUPLEX, objects=OBJECTS, edit=listener_of_each_pair, listener="NONE NONE"
    ) as gateway:
        yield gateway


@pytest.mark.parametrize("request_mode", MODES)
@pytest.mark.parametrize("response_mode", MODES)
async def test_a_pair_of_modes_works(
    every_pair: Gateway, request_mode: str, response_mode: str
) -> None:
    host, port = await every_pair.envoy.listener_address(f"{request_mode} {response_mode}")
    gateway = replace(every_pair, url=f"http://{host}:{port}")
    if request_mode != "NONE":  # there the body, and the model in it, is not seen
        whole = await gateway.completion(model="chat")
        assert whole.status_code == 200, whole.text
        comes = response_mode != "NONE"
        assert model_in(whole) == ("chat" if comes else "tiny")
    streamed = await gateway.completion(stream=True, max_tokens=30)
    assert streamed.status_code == 200
    assert streamed.text.endswith("data: [DONE]\n\n")
    # 300 KB: the model server refuses so long a prompt, after it has read all of it.
    long = await gateway.completion(prompt="Hello " * 50_000)
    assert long.status_code == 400
    models = await gateway.client.get(f"{gateway.url}/v1/models")
    assert models.json()["data"][0]["id"] == "tiny"
    await gateway.settled()
    gateway.assert_untouched()
    assert await gateway.faults() == NO_FAULTS


async def test_a_streamed_body_that_is_not_sent_ahead_is_refused() -> None:
    async with running(Mode.FULL_DUPLEX, edit=set_to("STREAMED", "NONE")) as gateway:
        response = await gateway.completion()
        assert response.status_code == 500
        assert "send_body_without_waiting_for_header_response" in response.text
        assert await gateway.faults() == NO_FAULTS


@pytest.mark.parametrize(
    ("limit", "status", "level"), [(32 << 20, 200, "ok"), (1 << 20, 504, "error")]
)
async def test_a_streamed_body_above_the_buffer_limit_hangs_as_the_doctor_says(
    limit: int, status: int, level: str
) -> None:
    documents = []

    def edit(document: dict[str, Any]) -> None:
        set_to("STREAMED", "NONE", sends_ahead=True)(document)
        for limited in having(document, "request_body_buffer_limit"):
            limited["request_body_buffer_limit"] = limit
        if status == 504:
            (config,) = having(document, "processing_mode")
            config["message_timeout"] = config["max_message_timeout"] = "2s"
        documents.append(document)

    async with running(Mode.FULL_DUPLEX, fleet=ROOMY, edit=edit) as gateway:
        assert (await gateway.completion()).status_code == 200
        response = await gateway.completion(prompt="Hello " * 500_000)
        assert response.status_code == status
        await gateway.settled()
        gateway.assert_untouched()
    found = examine_envoy(Doctored(source(documents[0], "test")))
    levels = {row.finding.level.value for row in found.rows if row.check == "buffer-limit"}
    assert levels == {level}


async def test_a_partial_body_that_envoy_cuts_off_is_too_large() -> None:
    def edit(document: dict[str, Any]) -> None:
        set_to("BUFFERED_PARTIAL", "NONE")(document)
        for limited in having(document, "request_body_buffer_limit"):
            limited["request_body_buffer_limit"] = 65_536

    async with running(Mode.FULL_DUPLEX, edit=edit) as gateway:
        assert (await gateway.completion()).status_code == 200
        # Envoy answers and hangs up; a client that is still writing may not get to read it.
        with capture_logs() as lines, suppress(httpx.TransportError):
            response = await gateway.completion(prompt="Hello " * 1_000_000)
            assert response.status_code == 413
        await gateway.settled()
        gateway.assert_untouched()
        assert [line["status"] for line in lines if line["event"] == "request refused"] == [413]
        assert await gateway.faults() == NO_FAULTS


async def test_a_renamed_response_is_asked_for_and_comes_back_with_the_clients_name() -> None:
    async with running(Mode.ADAPTIVE, objects=OBJECTS) as gateway:
        before = await gateway.messages()
        assert model_in(await gateway.completion(model="chat")) == "chat"
        asked = await gateway.messages() - before
        assert model_in(await gateway.completion()) == "tiny"
        assert await gateway.messages() - before - asked < asked
        await gateway.settled()
        gateway.assert_untouched()
        assert await gateway.faults() == NO_FAULTS
