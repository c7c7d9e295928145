"""``token-producer`` in mode ``vllm``, against the fake renderer of ``epp.lab.fleet``."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from struct import unpack
from typing import Any, Literal

import msgspec
import pytest
from log_watch import Logs

from epp.data_layer import HttpCalls
from epp.lab.fleet import FakeServer, Fleet, FleetConfig
from epp.observability.plugins import PluginCounter, PluginHistogram
from epp.request_control.plugins import PRODUCER_FAILURES, AsyncDataProducer
from epp.scheduling import CycleState, Plugin
from epp.testing import make_request
from epp_plugins.data_producers import rendering
from epp_plugins.data_producers.rendering import FAILURES_IN_A_ROW, RETRY_SECONDS
from epp_plugins.data_producers.token import Params, RenderedTokenProducer, TokenProducer
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = json.dumps([{"role": "user", "content": "hello there"}]).encode()
RENDERED = b"<|user|>\nhello there\n<|assistant|>\n"
"""What the fake template makes of them."""
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


class Outcomes:
    """Counts what the plugin counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def counter(
        self, plugin: Plugin, name: str, documentation: str, labels: Sequence[str] = ()
    ) -> PluginCounter:
        assert (name, labels) == ("token_render_requests_total", ("outcome",))
        return self

    def gauge(
        self,
        plugin: Plugin,
        name: str,
        documentation: str,
        read: Callable[[], Mapping[tuple[str, ...], float]],
        labels: Sequence[str] = (),
        *,
        plugin_labels: Literal["always", "several", "never"] = "always",
    ) -> None:
        raise AssertionError(name)

    def histogram(
        self, plugin: Plugin, name: str, documentation: str, bounds: Sequence[float]
    ) -> PluginHistogram:
        raise AssertionError(name)

    def inc(self, *labels: str) -> None:
        self.counts[labels[0]] += 1

    def add(self, count: int, *labels: str) -> None:
        raise AssertionError(labels)


@dataclass
class Setup:
    """A producer and its renderer."""

    producer: RenderedTokenProducer
    renderer: FakeServer
    outcomes: Counter[str]
    now: list[float] = field(default_factory=lambda: [0.0])

    async def tokens(self, prompt: bytes = MESSAGES, path: str = CHAT) -> TokenizedPrompt | None:
        return (await self.state(prompt, path)).read(TOKENIZED_PROMPT)

    async def state(self, prompt: bytes = MESSAGES, path: str = CHAT) -> CycleState:
        request, state = make_request(prompt=prompt, path=path), CycleState()
        if self.producer.applies_to(request, state):
            await self.producer.prepare_async(request, state)
        return state


@asynccontextmanager
async def rendering_by(
    url: str = "http://{address}", model: str = "tiny", **vllm: str
) -> AsyncIterator[Setup]:
    outcomes, now = Outcomes(), [0.0]
    async with Fleet(FleetConfig(endpoints=1, time_scale=0.01)) as fleet:
        given = {"url": url.format(address=fleet.addresses[0]), **vllm}
        params = msgspec.convert({"modelName": model, "vllm": given}, Params)
        producer = TokenProducer(
            "token", params, open_caller=HttpCalls, metrics=outcomes, clock=lambda: now[0]
        )
        assert isinstance(producer, RenderedTokenProducer)
        try:
            yield Setup(producer, fleet.servers[0], outcomes.counts, now)
        finally:
            producer.close()
            await asyncio.sleep(0)


def ids(tokens: TokenizedPrompt | None) -> tuple[int, ...]:
    assert tokens is not None
    assert len(tokens.data) == 4 * tokens.count
    return unpack(f"<{tokens.count}I", tokens.data)


async def test_a_chat_has_the_tokens_of_the_engine() -> None:
    async with rendering_by() as setup:
        tokens = await setup.tokens()
        starts = range(0, len(RENDERED), 4)
        assert ids(tokens) == tuple(int.from_bytes(RENDERED[at : at + 4], "big") for at in starts)
        assert setup.outcomes == {"ok": 1}


async def test_a_completion_has_them_too_and_a_base_path_stays() -> None:
    async with rendering_by() as setup:
        assert ids(await setup.tokens(b'"abcd"', COMPLETION)) == (0x61626364,)
    async with rendering_by("http://{address}/base/") as setup:
        assert await setup.tokens() is None
        assert setup.outcomes == {"status": 1}  # 404 tells of the renderer, not of the request


async def test_media_are_features_in_their_order() -> None:
    prompt = json.dumps([{"role": "user", "content": [IMAGE, {"type": "text", "text": "a"}]}])
    async with rendering_by() as setup:
        tokens = await setup.tokens(prompt.encode())
        assert tokens is not None
        (feature,) = tokens.features
        assert (feature.modality, feature.length) == ("image", 16)
        assert feature.offset + feature.length == tokens.count


@pytest.mark.parametrize(
    ("prompt", "path", "want", "outcomes"),
    [
        pytest.param(b"[1, 2]", COMPLETION, 2, {}, id="token ids"),
        pytest.param(b"", CHAT, None, {}, id="no prompt"),
        pytest.param(b'"a"', "/v1/responses", None, {"unsupported": 1}, id="another API"),
    ],
)
async def test_nobody_is_asked(
    prompt: bytes, path: str, want: int | None, outcomes: dict[str, int]
) -> None:
    async with rendering_by() as setup:
        tokens = await setup.tokens(prompt, path)
        assert (tokens and tokens.count) == want
        assert setup.renderer.counters.rendered == 0
        assert setup.outcomes == outcomes


async def test_tokens_that_are_there_stay() -> None:
    async with rendering_by() as setup:
        state = CycleState()
        state.write(TOKENIZED_PROMPT, TokenizedPrompt(b"", 0))
        request = make_request(prompt=MESSAGES, path=CHAT)
        assert not setup.producer.applies_to(request, state)


def response(*tokens: object, **features: object) -> bytes:
    return json.dumps({"token_ids": tokens, "features": features or None}).encode()


def image(offset: int, length: int, *, hashes: Sequence[str] = ("h",)) -> dict[str, Any]:
    place = {"offset": offset, "length": length}
    return {"mm_hashes": {"image": hashes}, "mm_placeholders": {"image": [place]}}


@pytest.mark.parametrize(
    "junk",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="bytes"),
        pytest.param(b"[" * 5000, id="brackets"),
        pytest.param(b"[]", id="no prompt"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"error": "no"}', id="another object"),
        pytest.param(response(), id="no ids"),
        pytest.param(response("a"), id="a word"),
        pytest.param(response(-1), id="a negative id"),
        pytest.param(response(2**32), id="an id of 33 bits"),
        pytest.param(response(1, **image(0, 2)), id="a picture behind the end"),
        pytest.param(response(1, **image(0, 0)), id="a picture of no length"),
        pytest.param(response(1, **image(-1, 1)), id="a picture before the beginning"),
        pytest.param(response(1, **image(0, 1, hashes=())), id="a picture without a hash"),
        pytest.param(response(1, **image(0, 1, hashes=["h" * 257])), id="a long hash"),
    ],
)
async def test_a_response_that_makes_no_sense_is_none(junk: bytes) -> None:
    async with rendering_by() as setup:
        setup.renderer.faults.garbled_render = junk
        state = await setup.state()
        assert state.read(TOKENIZED_PROMPT) is None
        failures = state.read(PRODUCER_FAILURES)
        assert failures is not None
        assert [(each.producer, each.reason) for each in failures] == [("token", "error")]
        assert setup.outcomes == {"junk": 1}


async def test_unknown_modalities_and_fields_are_passed_over() -> None:
    async with rendering_by() as setup:
        smell: dict[str, Any] = {
            "mm_hashes": {"smell": ["h"]},
            "mm_placeholders": None,
            "kwargs_data": {"a": []},
        }
        setup.renderer.faults.garbled_render = response(1, 2, **smell)
        assert await setup.tokens() == TokenizedPrompt(b"\1\0\0\0\2\0\0\0", 2)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(500, "status"), (503, "status"), (403, "status"), (400, "refused"), (422, "refused")],
)
async def test_a_status_is_the_renderers_fault_or_the_requests(status: int, outcome: str) -> None:
    async with rendering_by() as setup:
        setup.renderer.faults.render_status = status
        for _ in range(FAILURES_IN_A_ROW + 1):
            assert await setup.tokens() is None
        skipped = {"skipped": 1} if outcome == "status" else {}
        asked = FAILURES_IN_A_ROW + (not skipped)
        assert setup.outcomes == {outcome: asked, **skipped}


async def test_a_huge_response_is_cut_off() -> None:
    async with rendering_by() as setup:
        setup.renderer.faults.garbled_render = response(*[1] * 500_000)  # 1.5 MB for 50 bytes
        assert await setup.tokens() is None
        assert setup.outcomes == {"too-large": 1}


async def test_a_slow_renderer_is_waited_for_no_longer_than_the_timeout() -> None:
    async with rendering_by(timeout="10ms", mmTimeout="20ms") as setup:
        setup.renderer.faults.hang = True
        state = await setup.state()
        assert state.read(TOKENIZED_PROMPT) is None
        assert [each.reason for each in state.read(PRODUCER_FAILURES) or ()] == ["timeout"]
        prompt = json.dumps([{"role": "user", "content": [IMAGE]}]).encode()
        assert await setup.tokens(prompt) is None
        assert setup.outcomes == {"timeout": 2}
        # The framework's own limit would count as a failure of the plugin.
        assert setup.producer.timeout_seconds > 0.02


async def test_a_dead_renderer_is_asked_once_a_second_until_it_is_back(logs: Logs) -> None:
    async with rendering_by() as setup:
        await setup.renderer.refuse()
        for _ in range(FAILURES_IN_A_ROW + 3):
            assert await setup.tokens() is None
        assert setup.outcomes == {"connect": FAILURES_IN_A_ROW, "skipped": 3}
        setup.now[0] += RETRY_SECONDS
        assert await setup.tokens() is None
        assert await setup.tokens() is None
        assert setup.outcomes == {"connect": FAILURES_IN_A_ROW + 1, "skipped": 4}
        await setup.renderer.start()
        setup.now[0] += RETRY_SECONDS
        assert await setup.tokens() is not None
        assert await setup.tokens() is not None
        assert setup.outcomes["ok"] == 2
    events = [each["event"] for each in logs.entries]
    assert events == [
        "renderer failed, requests are scheduled without tokens",
        "renderer recovered",
    ]


async def test_a_request_that_cannot_be_converted_is_no_outage() -> None:
    async with rendering_by() as setup:
        for _ in range(FAILURES_IN_A_ROW + 1):
            assert await setup.tokens(b"[1.5]", "/v1/messages") is None
        assert setup.outcomes == {"unreadable": FAILURES_IN_A_ROW + 1}


@pytest.mark.parametrize(
    ("junk", "text"),
    [
        pytest.param(
            response(),
            "the response is invalid: Expected `array` of length >= 1 - at `$.token_ids`",
            id="no ids",
        ),
        pytest.param(
            response(1, **image(0, 2)),
            "the response has 1 token ids, and a placeholder of modality image at offset 0 with"
            " length 2, which does not lie within them",
            id="a picture behind the end",
        ),
        pytest.param(
            response(1, **image(0, 1, hashes=())),
            "the response has 0 hashes and 1 placeholders of modality image, expected one"
            " placeholder for each hash",
            id="a picture without a hash",
        ),
    ],
)
async def test_the_log_says_what_is_wrong_with_a_response(
    junk: bytes, text: str, logs: Logs
) -> None:
    async with rendering_by() as setup:
        setup.renderer.faults.garbled_render = junk
        assert await setup.tokens() is None
    assert [each["error"] for each in logs.entries] == [text]


async def test_what_is_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "MAX_BYTES", len(MESSAGES))
    monkeypatch.setattr(rendering, "FAILURES_IN_A_ROW", 1)
    async with rendering_by() as setup:
        setup.renderer.faults.hang = True
        under_way = asyncio.create_task(setup.tokens())
        await asyncio.sleep(0)
        assert await setup.tokens() is None
        assert setup.outcomes == {"busy": 1}
        under_way.cancel()
        await asyncio.gather(under_way, return_exceptions=True)
        setup.renderer.faults.hang = False
        assert await setup.tokens() is not None  # its bytes were given back, and it is not down


@pytest.mark.parametrize(
    ("parameters", "is_rendered"),
    [
        ({}, False),
        ({"estimate": {}, "modelName": "m"}, False),
        ({"modelName": "m"}, True),
        ({"vllm": {}}, True),
        ({"vllm": {"url": "https://[::1]:1/a"}, "modelName": "m"}, True),
    ],
)
def test_the_parameters_decide_the_mode(parameters: object, *, is_rendered: bool) -> None:
    params = msgspec.convert(parameters, Params)
    producer = TokenProducer("token", params, open_caller=HttpCalls)
    assert isinstance(producer, AsyncDataProducer) == is_rendered


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"vllm": {"url": "localhost:8000"}}, "not of the form `http://HOST:PORT`"),
        ({"vllm": {"url": "grpc://x:1"}}, "not of the form `http://HOST:PORT`"),
        ({"vllm": {"url": "http://x:99999"}}, "Port out of range"),
        ({"vllm": {"url": "http://u:p@x"}}, "user, query and fragment"),
        ({"vllm": {"url": "http://x/a b"}}, "without spaces"),
        ({"vllm": {"uri": "http://x"}}, "unknown field `uri`"),
        ({"vllm": {}, "estimate": {}}, "`estimate` and `vllm` exclude each other; give only one"),
        ({"vllm": {}, "udsTokenizerConfig": {"socketFile": "a"}}, "give only one of them"),
        ({"udsTokenizerConfig": {}}, "missing required field `socketFile`"),
    ],
)
def test_what_cannot_be_honoured_is_refused(parameters: object, message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(parameters, Params)
