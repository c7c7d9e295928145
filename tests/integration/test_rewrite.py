"""Changes by the endpoint picker, as the model server and the client see them."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx
import pytest
import pytest_asyncio

from epp.app import Transport
from epp.lab.envoy import Mode
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.service import Service
from epp.observability import PluginWatch
from epp.request_control import (
    REQUEST_HEADERS_TO_SET,
    AsyncDataProducer,
    Pipeline,
    PreRequest,
    ResponseHead,
    ResponseHeader,
)
from epp.scheduling import (
    CycleState,
    Endpoint,
    GuardRails,
    LLMRequest,
    SchedulingResult,
)
from epp_plugins.parsers.openai import OpenAiParser, Params
from tools.harness.gateway import NO_FAULTS, ROOMY, Gateway, in_each_mode, running, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    in_each_mode,
]

LONG_NAME = "a-name-that-is-longer-than-the-one-that-it-stands-for"


class Everything(AsyncDataProducer, PreRequest, ResponseHeader):
    """Makes some requests wait, and changes the headers of all and of their responses."""

    type: ClassVar[str] = "everything"
    timeout_seconds = 10.0

    def __init__(self) -> None:
        self.name = "everything"
        self.may_go_on = asyncio.Event()
        self.waiting = 0

    def applies_to(self, request: LLMRequest, state: CycleState) -> bool:
        return "x-wait" in request.headers

    async def prepare_async(self, request: LLMRequest, state: CycleState) -> None:
        self.waiting += 1
        try:
            await self.may_go_on.wait()
        finally:
            self.waiting -= 1

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        headers = {"x-tier": "gold", "x-secret": None, "x-model": request.model}
        state.write(REQUEST_HEADERS_TO_SET, headers)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        response.set_headers["x-answered-by"] = f"{served_by.name} {response.status}"
        response.set_headers["x-served-by"] = response.headers["x-served-by"].upper()


@dataclass(slots=True)
class Changing:
    """A gateway that changes requests, and what has arrived at its model servers."""

    gateway: Gateway
    plugin: Everything
    arrived: list[Exchange]

    async def post(
        self,
        document: dict[str, Any],
        *,
        chunked: bool = False,
        **headers: str,
    ) -> tuple[httpx.Response, Exchange]:
        """Send a request; return the response and what arrived at the model server."""
        body = json.dumps(document).encode()
        if headers.get("content_encoding") == "gzip":
            body = gzip.compress(body)

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(body), 30_000):
                yield body[start : start + 30_000]

        self.arrived.clear()
        response = await self.gateway.client.post(
            f"{self.gateway.url}/v1/completions",
            content=pieces() if chunked else body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        (arrived,) = self.arrived
        return response, arrived


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def changing(mode: Mode, transport: Transport) -> AsyncIterator[Changing]:
    """A gateway that several tests share."""
    arrived: list[Exchange] = []
    serve = Service._serve_generation  # the fake tells nobody what it was sent

    def note_and_serve(service: Service, exchange: Exchange) -> None:
        arrived.append(exchange)
        serve(service, exchange)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Service, "_serve_generation", note_and_serve)
        async with running(mode, transport=transport, fleet=ROOMY) as gateway:
            plugin, director = Everything(), gateway.app.pool.director
            guards = GuardRails(observer=PluginWatch(gateway.app.metrics))
            director.pipeline = Pipeline.of(
                [plugin],
                director.pipeline.scheduler,
                guards,
                parsers=[OpenAiParser("openai-parser", Params())],
            )
            yield Changing(gateway, plugin, arrived)


async def test_a_compressed_body_arrives_as_it_came_or_plain_with_another_model(
    changing: Changing,
) -> None:
    changing.plugin.may_go_on.set()
    document = {"model": "tiny", "prompt": "hello " * 100, "max_tokens": 2}
    _, arrived = await changing.post(document, content_encoding="gzip")
    assert gzip.decompress(arrived.body) == json.dumps(document).encode()
    assert arrived.headers[b"content-encoding"] == b"gzip"
    _, arrived = await changing.post(
        document, content_encoding="gzip", x_llm_d_model_name_rewrite="other"
    )
    assert json.loads(arrived.body) == {**document, "model": "other"}
    assert b"content-encoding" not in arrived.headers


@pytest.mark.parametrize("waits", [False, True], ids=["decided at once", "decided later"])
@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
@pytest.mark.parametrize(
    ("model", "prompt_chars"),
    [
        pytest.param("x", 10, id="a longer name"),
        pytest.param(LONG_NAME, 10, id="a shorter name"),
        pytest.param(LONG_NAME, 400_000, id="a long prompt"),
        pytest.param(LONG_NAME, 3_000_000, id="a prompt of 3 MB"),
    ],
)
async def test_the_model_server_sees_the_new_model_and_the_rest_as_it_was(
    *, changing: Changing, mode: Mode, model: str, prompt_chars: int, chunked: bool, waits: bool
) -> None:
    changing.plugin.may_go_on.set()
    document = {"model": model, "prompt": "0123456789" * (prompt_chars // 10), "max_tokens": 2}
    more = {"x_wait": "1"} if waits else {}
    response, arrived = await changing.post(
        document, chunked=chunked, x_llm_d_model_name_rewrite="tiny", **more
    )
    assert response.status_code == 200, response.text
    # In lean mode the response's body is not seen, so the client's name cannot be put back.
    assert response.json()["model"] == ("tiny" if mode is Mode.LEAN else model)
    assert json.loads(arrived.body) == {**document, "model": "tiny"}
    length = arrived.headers.get(b"content-length")
    if mode is Mode.ADAPTIVE and not chunked:
        assert length == str(len(arrived.body)).encode()
    else:
        # Where bodies stream Envoy takes every length off and sends chunks.
        assert length is None
        assert arrived.headers[b"transfer-encoding"] == b"chunked"
    await changing.gateway.settled()
    changing.gateway.assert_untouched()
    assert await changing.gateway.faults() == NO_FAULTS


async def test_the_length_of_a_body_as_it_came_stays_right(changing: Changing, mode: Mode) -> None:
    response, arrived = await changing.post({"model": "tiny", "prompt": "Hello", "max_tokens": 1})
    assert response.status_code == 200
    length = str(len(arrived.body)).encode() if mode is Mode.ADAPTIVE else None
    assert arrived.headers.get(b"content-length") == length


async def test_headers_are_set_and_removed_on_the_way_there_and_back(changing: Changing) -> None:
    response, arrived = await changing.post(
        {"model": "tiny", "prompt": "Hello", "max_tokens": 1}, x_secret="s", x_tier="none"
    )
    assert arrived.headers[b"x-tier"] == b"gold"
    assert arrived.headers[b"x-model"] == b"tiny"
    assert b"x-secret" not in arrived.headers
    assert response.headers["x-answered-by"].endswith(" 200")
    assert response.headers["x-served-by"] in {"ENDPOINT-0", "ENDPOINT-1"}
    assert await changing.gateway.faults() == NO_FAULTS


async def test_a_header_that_envoy_would_refuse_costs_the_request_nothing(
    changing: Changing,
) -> None:
    document = {"model": "a name\r\nof two lines", "prompt": "Hello", "max_tokens": 1}
    response, arrived = await changing.post(document, x_llm_d_model_name_rewrite="tiny")
    assert response.status_code == 200
    assert b"x-model" not in arrived.headers
    assert arrived.headers[b"x-tier"] == b"gold"
    assert await changing.gateway.faults() == NO_FAULTS


async def test_a_client_that_leaves_while_its_request_waits_leaves_nothing(
    changing: Changing,
) -> None:
    gateway, plugin = changing.gateway, changing.plugin
    plugin.may_go_on.clear()
    document = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
    asking = [asyncio.create_task(changing.post(document, x_wait="1")) for _ in range(5)]
    await until(lambda: plugin.waiting == 5)
    assert gateway.in_flight() == 0
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    await gateway.settled()
    await until(lambda: plugin.waiting == 0)
    gateway.assert_untouched()
    plugin.may_go_on.set()
    response, _ = await changing.post(document, x_wait="1")
    assert response.status_code == 200
    assert await gateway.faults() == NO_FAULTS


async def test_draining_answers_a_request_that_still_waits(changing: Changing) -> None:
    gateway, plugin = changing.gateway, changing.plugin
    plugin.may_go_on.clear()
    headers = {"x-wait": "1"}
    document = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
    asking = asyncio.create_task(
        gateway.client.post(f"{gateway.url}/v1/completions", json=document, headers=headers)
    )
    await until(lambda: plugin.waiting == 1)
    await gateway.app.service.drain(0.01)
    response = await asking
    assert response.status_code == 503
    assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-shutting-down"
    await gateway.settled()
    gateway.assert_untouched()
    plugin.may_go_on.set()
