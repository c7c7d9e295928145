"""Connects a generation request with its sequence in the engine, and counts it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from epp.lab.fleet.api import ApiRequest
from epp.lab.fleet.driver import EngineDriver
from epp.lab.fleet.embeddings_format import EmbeddingsFormat
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.load_report import report_headers
from epp.lab.fleet.messages_format import MessagesFormat
from epp.lab.fleet.openai_bodies import ChatBody, CompletionsBody, EmbeddingsBody, ResponsesBody
from epp.lab.fleet.openai_formats import ChatFormat, CompletionsFormat
from epp.lab.fleet.request_entry import RequestEntry
from epp.lab.fleet.response_formats import ResponseFormat, StreamFormat
from epp.lab.fleet.responses_format import ResponsesFormat
from epp.lab.fleet.sequence import FinishReason, Sequence
from epp.lab.fleet.sglang_format import GenerateBody, GenerateFormat
from epp.lab.fleet.stages import WorkStage


@dataclass(slots=True)
class Counters:
    """Requests of one server; `received` is always the sum of the next four fields."""

    received: int = 0
    """Generation requests with a complete body."""
    in_flight: int = 0
    """Requests that have not ended, including those of a hanging server."""
    completed: int = 0
    """Requests with a complete response."""
    aborted: int = 0
    """Requests that ended because the client disconnected or the server stopped or crashed."""
    refused: int = 0
    """Requests with an error response."""
    scrapes: int = 0
    """Requests for `/metrics`; not generation requests."""
    rendered: int = 0
    """Requests for the tokens of a prompt; not generation requests."""
    stages: dict[WorkStage, int] = field(default_factory=lambda: dict.fromkeys(WorkStage, 0))
    """Started generation requests by stage."""


class Generation:
    """Sends the output of a sequence as the response of an exchange."""

    __slots__ = (
        "_counters",
        "_driver",
        "_entry",
        "_exchange",
        "_format",
        "_sent",
        "_sequence",
        "_stream",
    )

    def __init__(
        self,
        exchange: Exchange,
        request: ApiRequest,
        driver: EngineDriver,
        counters: Counters,
        entry: RequestEntry,
    ) -> None:
        self._exchange = exchange
        self._driver = driver
        self._counters = counters
        self._entry = entry
        self._format = response_format = _format_of(request, created=int(time.time()))
        self._sent = 0
        self._stream: StreamFormat | None = None
        if request.body.stream and isinstance(response_format, StreamFormat):
            self._stream = response_format
            exchange.start_stream()
            exchange.on_writable = self._flush
        exchange.on_disconnect = self._client_left
        self._sequence = driver.submit(
            request.generation, on_token=self._token if self._stream else None, on_end=self._end
        )

    def _token(self, sequence: Sequence) -> None:
        # As in vLLM, a slow client later gets the tokens that it missed in one event, so that no
        # output accumulates.
        if self._exchange.writable:
            self._write(sequence)

    def _write(self, sequence: Sequence) -> None:
        if self._stream is None or self._sent == sequence.generated:
            return
        reason = sequence.finish_reason
        first = b"" if self._sent else self._stream.first(sequence)
        data = first + self._stream.delta(sequence.text(self._sent), reason)
        self._sent = sequence.generated
        if reason is None:
            self._exchange.write(data)
        else:
            self._exchange.finish(data + self._stream.last(sequence))

    def _flush(self) -> None:
        self._write(self._sequence)

    def _end(self, sequence: Sequence) -> None:
        self._counters.in_flight -= 1
        if sequence.finish_reason is FinishReason.ABORT:
            self._counters.aborted += 1
            self._entry.ended("aborted", 200 if self._exchange.started else 0, sequence)
            return
        self._counters.completed += 1
        self._entry.ended("completed", 200, sequence)
        if self._stream is None:
            has_report = isinstance(self._format, ChatFormat | CompletionsFormat)  # as in vLLM
            asked = self._exchange.headers if has_report else {}
            extra = report_headers(asked, self._driver.engine)
            self._exchange.respond(200, self._format.whole(sequence), extra=extra)

    def _client_left(self) -> None:
        self._driver.abort(self._sequence)


def _format_of(request: ApiRequest, *, created: int) -> ResponseFormat:
    match request.body:
        case ChatBody() as body:
            return ChatFormat(request, body, created=created)
        case CompletionsBody() as body:
            return CompletionsFormat(request, body, created=created)
        case ResponsesBody() as body:
            return ResponsesFormat(request, body, created=created)
        case GenerateBody() as body:
            return GenerateFormat(body.rid or request.id)
        case EmbeddingsBody() as body:
            return EmbeddingsFormat(request, body, created=created)
        case _:
            return MessagesFormat(request)
