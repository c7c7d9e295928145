"""The paths of a fake server other than generation: health, metrics, models, tokens, adapters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from epp.lab.fleet.adapters import LOAD, UNLOAD, load_adapter, unload_adapter
from epp.lab.fleet.api import COUNT_TOKENS
from epp.lab.fleet.config import EngineType
from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.faults import ServerFaults
from epp.lab.fleet.generation import Counters
from epp.lab.fleet.messages_format import count_body
from epp.lab.fleet.metrics_endpoint import MetricsEndpoint
from epp.lab.fleet.process import FakeProcess
from epp.lab.fleet.render import RENDER_CHAT, RENDER_COMPLETION, render_body
from epp.lab.fleet.response_formats import error_body, models_body
from epp.lab.fleet.tokenizer import DETOKENIZE, TOKENIZE, detokenized_body, tokenized_body

PLAIN = b"text/plain; charset=utf-8"

Route = tuple[bytes, Callable[[Exchange], None]]
"""Method and handler of a path."""


class Pages:
    """Serves these paths for one process."""

    def __init__(
        self,
        process: FakeProcess,
        faults: ServerFaults,
        counters: Counters,
        request_id: Callable[[Exchange], str],
        event_sources: Callable[[], list[dict[str, object]]],
    ) -> None:
        self.metrics = MetricsEndpoint(process.page, faults)
        """`/metrics`."""
        self._process = process
        self._faults = faults
        self._counters = counters
        self._request_id = request_id
        self._event_sources = event_sources
        self.routes: dict[bytes, Route] = {
            b"/health": (b"GET", self._serve_health),
            b"/metrics": (b"GET", self._serve_metrics),
            b"/v1/models": (b"GET", self._serve_models),
            b"/kv_event_sources": (b"GET", self._serve_event_sources),
            COUNT_TOKENS: (b"POST", self._count_tokens),
            TOKENIZE: (b"POST", self._tokenize),
            DETOKENIZE: (b"POST", self._detokenize),
            RENDER_CHAT: (b"POST", self._render),
            RENDER_COMPLETION: (b"POST", self._render),
            **dict.fromkeys(LOAD, (b"POST", self._load_adapter)),
            **dict.fromkeys(UNLOAD, (b"POST", self._unload_adapter)),
        }
        """Method and handler by path."""
        if process.engine_type is EngineType.SGLANG:
            self.routes[b"/health_generate"] = (b"GET", self._serve_health)

    def _serve_health(self, exchange: Exchange) -> None:
        exchange.respond(self._faults.health_status or 200)

    def _serve_metrics(self, exchange: Exchange) -> None:
        self._counters.scrapes += 1
        self.metrics.respond(exchange)

    def _serve_models(self, exchange: Exchange) -> None:
        process, api = self._process, self._process.api
        body = models_body(
            api.model,
            api.adapters,
            max_model_len=api.max_model_len,
            created=process.created,
            owner=process.engine_type.value,
        )
        exchange.respond(200, body)

    def _serve_event_sources(self, exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode(self._event_sources()))

    def _count_tokens(self, exchange: Exchange) -> None:
        def count() -> bytes:
            parsed = self._process.api.parse(exchange.path, exchange.body, "count")
            return count_body(parsed.generation.prompt_tokens)

        _respond(exchange, count)

    def _tokenize(self, exchange: Exchange) -> None:
        api = self._process.api
        models = (api.model, *api.adapters)
        _respond(exchange, lambda: tokenized_body(exchange.body, models, api.max_model_len))

    def _detokenize(self, exchange: Exchange) -> None:
        models = (self._process.api.model, *self._process.api.adapters)
        _respond(exchange, lambda: detokenized_body(exchange.body, models))

    def _render(self, exchange: Exchange) -> None:
        self._counters.rendered += 1
        faults = self._faults
        if faults.render_status is not None:
            exchange.respond(faults.render_status, b"fault injected", PLAIN)
        elif faults.garbled_render is not None:
            exchange.respond(200, faults.garbled_render)
        else:
            model, request_id = self._process.api.model, self._request_id(exchange)
            _respond(exchange, lambda: render_body(exchange.path, exchange.body, model, request_id))

    def _load_adapter(self, exchange: Exchange) -> None:
        try:
            text = load_adapter(self._process, exchange.body)
        except VllmApiError as error:
            refuse(exchange, error)
            return
        config = self._process.engines[0].config
        seconds = config.lora_load_seconds * config.time_scale
        asyncio.get_running_loop().call_later(
            seconds, lambda: exchange.respond(200, text.encode(), PLAIN)
        )

    def _unload_adapter(self, exchange: Exchange) -> None:
        def unload() -> bytes:
            return unload_adapter(self._process, exchange.body).encode()

        _respond(exchange, unload, PLAIN)


def refuse(exchange: Exchange, error: VllmApiError) -> None:
    """Respond with an error."""
    exchange.respond(error.status, error_body(error, exchange.path))


def _respond(
    exchange: Exchange, body: Callable[[], bytes], content_type: bytes = b"application/json"
) -> None:
    """Respond with a body, or with the error that it raises."""
    try:
        response = body()
    except VllmApiError as error:
        refuse(exchange, error)
    else:
        exchange.respond(200, response, content_type)
