"""The response on an ext_proc stream: what is read from it and changed in it on its way.

From its headers on nothing may answer in its place: whatever goes wrong, the response goes on.
"""

from collections.abc import Mapping
from typing import ClassVar

from epp.ext_proc import messages, reading
from epp.ext_proc.answer import AnswerBody, is_needed, is_worth_asking
from epp.ext_proc.modes import BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, HELD, NONE, STREAMED
from epp.ext_proc.phases import ExtProcState, Transitions
from epp.ext_proc.plugin_headers import sendable
from epp.ext_proc.reading import Chunk, Head, MessageContext
from epp.ext_proc.stream_life import StreamLife
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import EndCause, RoutedRequest


class ResponsePhase(StreamLife):
    """What a stream does with the messages of the response."""

    __slots__ = ()

    def _response_headers(self, head: Head, context: MessageContext) -> None:
        # First of all: from here on nothing may answer in the response's place.
        self.state = ExtProcState.RESPONSE_BODY
        began_at = self._clock()
        exchange, answer = self._exchange, messages.CONTINUE_RESPONSE_HEADERS
        if exchange is not None:
            if context.served:
                exchange.served_by(context.served)
            body = None if head.end_of_stream else self._begin_answer(exchange)
            if exchange.wants_response_headers or (body is not None and is_needed(exchange)):
                answer = self._looked_at(exchange, head.headers, body, context.served)
            else:
                exchange.response_started(reading.status(head.headers))
        self._stream.send(answer)
        if exchange is not None:
            exchange.response_seconds = self._clock() - began_at
        if head.end_of_stream:
            self.close(EndCause.COMPLETED)

    def _looked_at(
        self,
        exchange: RoutedRequest,
        headers: Mapping[str, str],
        body: AnswerBody | None,
        served: str,
    ) -> bytes:
        """Return the answer to ``headers`` that somebody wants to see, or to read ``body`` by."""
        status = reading.status(headers)
        added = exchange.response_started(status, headers, served)
        wanted = sendable(added, self._request_id) if added else {}
        if body is not None and is_needed(exchange):
            body.watch(exchange, headers)
            if (
                body.names is not None
                and self._response_body_mode in {NONE, STREAMED}
                and messages.CONTENT_LENGTH in headers
            ):
                wanted[messages.CONTENT_LENGTH] = None
        asks = self._response_body_mode == NONE and body is not None and body.is_watched
        return messages.passed_response_headers(wanted, asks_for_body=asks)

    def _begin_answer(self, exchange: RoutedRequest) -> AnswerBody | None:
        """Return what the response's body will pass through; None if it will not come.

        Envoy is asked for it only where its filter is set up as for adaptive mode. It ignores that
        if the filter does not allow it, and the stream goes on without the body.
        """
        comes = self._response_body_mode != NONE or (
            self._request_body_mode == BUFFERED
            and is_worth_asking(exchange, self._request_id, self._settings.sample_usage)
        )
        self._answer = AnswerBody(self._request_id) if comes else None
        return self._answer

    def _answered_alone(self, _head: Head, _context: MessageContext) -> None:
        """Envoy's own answer to a request that it never sent here, such as 400 to a bad head.

        There is nothing to decide and nothing to read: the answer goes on without this stream.
        """
        self._leave(EndCause.COMPLETED)

    def _answered_meanwhile(self, head: Head, context: MessageContext) -> None:
        """Envoy's own answer, for example 413 to a body above its buffer limit.

        Nobody waits for a decision any more, and nobody needs the request's body.
        """
        self._drop_body(is_coming=self.state is ExtProcState.REQUEST_BODY)
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel(EndCause.ERROR)
        self._response_headers(head, context)

    def _response_body(self, chunk: Chunk, _: MessageContext) -> None:
        began_at = self._clock()
        body, end_of_stream = chunk
        passed, answer = body, self._answer
        if answer is not None:
            if not answer.size:
                self._answer_begins(answer)
            elif body and answer.between is not None:
                answer.between(began_at - answer.last_at)
                answer.last_at = began_at
            answer.size += len(body)
            if answer.names is not None:
                # A held body is one message, without the end flag if trailers follow it.
                is_last = end_of_stream or self._response_body_mode in HELD
                passed = answer.names.feed(body, is_last=is_last)
        # Of the last chunk alone: it has to be read before its answer, which says what was in it.
        facts = self._facts(body) if end_of_stream else b""
        if self._response_body_mode == FULL_DUPLEX:
            if len(passed) <= messages.MAX_BODY_CHUNK_BYTES:
                echo = messages.echoed_chunk(passed, end_of_stream=end_of_stream)
                self._stream.send(echo + facts if facts else echo)
            else:
                pieces = iter(messages.echoed_response(passed, end_of_stream=end_of_stream))
                self._stream.send(next(pieces) + facts)
                self._send_all(pieces)
        elif passed is body or passed == body:
            self._stream.send(messages.CONTINUE_RESPONSE_BODY + facts)
        else:
            is_buffered = self._response_body_mode == BUFFERED
            replaced = messages.replaced_response(passed, sets_length=is_buffered)
            self._stream.send(replaced + facts)
        if body and answer is not None and answer.reader is not None:
            answer.read(body, answer.reader)
        if self._exchange is not None:
            self._exchange.response_seconds += self._clock() - began_at
        if end_of_stream:
            self.close(EndCause.COMPLETED)

    def _facts(self, last: bytes = b"") -> bytes:
        """Return what plugins tell the gateway of the response, to put behind its last answer.

        Args:
            last: What of its body has come and has not been read.
        """
        exchange, answer = self._exchange, self._answer
        if exchange is None or not exchange.pipeline.answer_reporters:
            return b""
        if last and answer is not None and answer.reader is not None:
            try:
                answer.reader.feed(last)
            except Exception as error:
                answer.reader_failed(error)
        told = exchange.report(None if answer is None else answer.usage())
        return messages.facts(told) if told else b""

    def _answer_begins(self, answer: AnswerBody) -> None:
        if self._exchange is not None:
            answer.begins(self._exchange, self._clock())
        # A body is sent after all; of one that was cut off no more will come.
        self._end_is_unseen = self._response_body_mode == BUFFERED_PARTIAL

    def _response_trailers(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        self._give_back_held()
        self._stream.send(messages.CONTINUE_RESPONSE_TRAILERS + self._facts())
        self.close(EndCause.COMPLETED)

    TRANSITIONS: ClassVar[Transitions] = {
        (ExtProcState.REQUEST_HEADERS, "response_headers"): _answered_alone,
        (ExtProcState.REQUEST_BODY, "response_headers"): _answered_meanwhile,
        (ExtProcState.DECIDING, "response_headers"): _answered_meanwhile,
        (ExtProcState.RESPONSE_HEADERS, "response_headers"): _response_headers,
        (ExtProcState.RESPONSE_BODY, "response_body"): _response_body,
        (ExtProcState.RESPONSE_BODY, "response_trailers"): _response_trailers,
    }
