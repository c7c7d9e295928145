"""The request on an ext_proc stream: its headers, its body, and the answer that routes it.

* FULL_DUPLEX_STREAMED body: Envoy sends headers and body without waiting. The answer to the headers
  is held back until the body is whole; then headers and the body itself go back.
* STREAMED body, sent without waiting: the same, but every chunk gets an answer of its own that lets
  it pass. Without that flag Envoy waits for an answer to the headers: refused.
* BUFFERED body: Envoy waits for an answer to the headers before it sends the body, whole; the
  destination is set by the answer to the body. BUFFERED_PARTIAL is the same, but a body larger than
  Envoy's buffer comes without its end: refused.
* No body, or body mode NONE: the answer to the headers sets the destination.

A decision may take a while. Nothing is answered until it is made; what Envoy sends meanwhile is
answered after it, and a stream that ends meanwhile takes the question back.
"""

from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import ClassVar, Final

from epp.ext_proc import control_headers, messages
from epp.ext_proc.modes import ASSUMED, BUFFERED, BUFFERED_PARTIAL, HELD, NONE, STREAMED
from epp.ext_proc.phases import ExtProcState, Transitions
from epp.ext_proc.plugin_headers import sendable
from epp.ext_proc.reading import Head, MessageContext, RequestChunk
from epp.ext_proc.request_ids import new_request_id
from epp.ext_proc.request_limits import rejection, too_large
from epp.ext_proc.stream_life import StreamLife
from epp.ext_proc.traceparent import TRACEPARENT, new_traceparent
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import (
    HeldBytesError,
    PartialBodyError,
    PendingDecision,
    RequestError,
    RoutedRequest,
    TooManyStreamsError,
)

_Answer = Callable[[RoutedRequest], None]

_COUNTED_HEADERS_BYTES: Final = 4 << 10
"""Longer headers count as held while the body comes: 48 KB of them, in 4000 requests whose bodies
did not end, took 256 MB beside the account."""


class RequestPhase(StreamLife):
    """What a stream does with the messages of the request."""

    __slots__ = ()

    def _request_headers(self, head: Head, context: MessageContext) -> None:
        self._received_at = self._progress_at = self._clock()
        headers, size, end_of_stream = head
        self._headers = headers
        request_id = headers.get(messages.REQUEST_ID)
        if not request_id:
            request_id = headers[messages.REQUEST_ID] = new_request_id()
            self._set_request_id = True
        self._request_id = request_id
        self._subset = context.subset
        modes = context.body_modes or ASSUMED
        self._request_body_mode, self._response_body_mode, _ = modes
        # What is assumed may be wrong: that the response's body comes shows when it does.
        self._end_is_unseen = context.body_modes is None or modes.response == NONE
        if self.is_surplus:
            self._turn_away(
                TooManyStreamsError(f"no more than {self._settings.max_streams} may be open")
            )
        elif error := rejection(modes, size, headers, self._settings):
            self._turn_away(error)
        elif end_of_stream or self._request_body_mode == NONE:
            self._decide(self._answer_headers)
        else:
            self.state = ExtProcState.REQUEST_BODY
            if size > _COUNTED_HEADERS_BYTES and not self._has_room_for_headers(size):
                return
            if self._request_body_mode in HELD:
                self._stream.send(messages.CONTINUE_REQUEST_HEADERS)

    def _has_room_for_headers(self, size: int) -> bool:
        """Count headers that are kept until the body has come; refuse the request without room."""
        try:
            self.hold(size)
        except HeldBytesError as error:
            self._turn_away(error)
        return self.state is ExtProcState.REQUEST_BODY

    def _request_body(self, chunk: RequestChunk, _: MessageContext) -> None:
        body, end_of_stream = chunk
        size, held = len(body), self._held
        self._chunks += 1
        if size:
            if not self._body_bytes:
                held.readers += 1
                self._body = body
            else:
                self._append(body)
            held.used_bytes += size
            self._body_bytes += size
        if held.used_bytes > held.high_bytes and self._is_short_of_room(is_last=end_of_stream):
            return
        if self._body_bytes > self._settings.max_body_bytes:
            self._turn_away(too_large(f"at least {self._body_bytes}", self._settings))
        elif self._request_body_mode == BUFFERED:
            # Whole in one message; without the end-of-stream flag when trailers follow it.
            self._decide(self._answer_buffered_body)
        elif self._request_body_mode == BUFFERED_PARTIAL:
            self._partial_body(end_of_stream)
        elif end_of_stream:
            self._decide(self._answer_body)

    def _append(self, body: bytes | memoryview) -> None:
        """Keep another chunk, with those before it.

        Not as a list: a long body would be copied at its end, 45 ms for 64 MiB, and small chunks
        by themselves take up to fifty times their size.
        """
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = BytesIO()
            buffer.write(self._body)
            self._body = b""
        buffer.write(body)

    def _is_short_of_room(self, *, is_last: bool) -> bool:
        """See to a body for which there is little room or none; return whether it was refused."""
        held, settings = self._held, self._settings
        if self._body_bytes <= settings.max_body_bytes and not held.has_room_for(self):
            self._turn_away(self._no_room())
            return True
        comes_whole = is_last or self._request_body_mode in HELD
        if not comes_whole and held.must_wait(self):
            self._stream.pause_reading()
        return False

    def _partial_body(self, end_of_stream: bool) -> None:
        if end_of_stream:
            self._decide(self._answer_buffered_body)
            return
        self._turn_away(
            PartialBodyError(
                f"of the request's body only the first {self._body_bytes} bytes came: it is larger"
                " than Envoy buffers, or has trailers; raise Envoy's request_body_buffer_limit (or"
                " per_connection_buffer_limit_bytes), or set processing_mode.request_body_mode to"
                " FULL_DUPLEX_STREAMED"
            )
        )

    def _request_trailers(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        """The body ended with trailers instead of an end-of-stream flag."""
        if self._request_body_mode in HELD:
            self._unexpected("request_trailers")  # the body is due, and carries the destination
            return
        self._decide(self._answer_trailers)

    def _decide(self, answer: _Answer) -> None:
        """Have the request, which is whole, decided; ``answer`` what was held back, then."""
        self.state = ExtProcState.DECIDING
        if self._body_bytes:
            self._held.read(self)
        if self._buffer is not None:
            self._body, self._buffer = self._buffer.getvalue(), None
        decision = self._handler.handle(
            request_id=self._request_id,
            headers=self._seen_headers(),
            body=self._body,
            received_at=self._received_at,
            subset=self._subset,
            memory=self,
        )
        if isinstance(decision, PendingDecision):
            self._pending = decision
            decision.then(partial(self._decided, answer))
        else:
            self._route(decision, answer)

    def _decided(self, answer: _Answer, outcome: RoutedRequest | RequestError) -> None:
        self._pending = None
        try:
            if isinstance(outcome, RequestError):
                self._refuse(outcome)
            else:
                self._route(outcome, answer)
                if self._echo is None:
                    self._send_due()
        except Exception as error:
            self._broke(error)

    def _route(self, exchange: RoutedRequest, answer: _Answer) -> None:
        self._exchange = exchange
        self.state = ExtProcState.RESPONSE_HEADERS
        if exchange.in_flight is not None:
            exchange.on_revoked = self.evict
        answer(exchange)
        if self._chunks:
            exchange.body_sent()
            self._body = b""
            if self._echo is None:
                self._drop_body()
        elif self._extra_bytes:  # a body of trailers alone
            self._drop_body()

    def _answer_headers(self, exchange: RoutedRequest) -> None:
        self._send_route(exchange, on_body=False)

    def _answer_buffered_body(self, exchange: RoutedRequest) -> None:
        self._send_route(exchange, on_body=True)

    def _answer_body(self, exchange: RoutedRequest) -> None:
        self._send_route(exchange, on_body=False)
        if self._request_body_mode == STREAMED:
            self._pass_request_body(exchange.body)
        else:
            self._echo_request_body(exchange.body, end_of_stream=True)

    def _answer_trailers(self, exchange: RoutedRequest) -> None:
        self._send_route(exchange, on_body=False)
        if self._request_body_mode == STREAMED:
            self._pass_request_body(exchange.body)
        elif self._body:
            self._echo_request_body(exchange.body, end_of_stream=False)
        self._answer_trailers_in_turn()

    def _send_route(self, exchange: RoutedRequest, *, on_body: bool) -> None:
        decision, body = exchange.decision, exchange.body
        address, wanted = decision.destination, decision.request_headers
        settings = self._settings
        if not settings.destination_list:
            address = address.partition(",")[0]
        if settings.keep_control_headers:
            names = control_headers.removed_where_kept(settings.ignored_client_headers)
            removed = control_headers.present(self._headers, names)
        else:
            removed = control_headers.present(self._headers)
        scores = decision.scores
        traceparent = ""
        if settings.tracing and TRACEPARENT not in self._headers:
            traceparent = new_traceparent(settings.trace_ratio)
        if body is None and not wanted and scores is None and not self._set_request_id:
            if traceparent:
                answer = messages.routed_traced(
                    address, on_body=on_body, removed=removed, traceparent=traceparent
                )
            else:
                answer = messages.routed(address, on_body=on_body, removed=removed)
            self._stream.send(answer)
            return
        headers: dict[str, str | None] = dict.fromkeys(removed)
        if self._set_request_id:
            headers[messages.REQUEST_ID] = self._request_id
        if traceparent:
            headers[TRACEPARENT] = traceparent
        headers |= sendable(wanted, self._request_id)
        if body is not None and messages.CONTENT_LENGTH in self._headers:
            # Envoy compares it with a buffered body and refuses another length; where bodies
            # stream it removes the header, unless allow_content_length_header is set.
            headers[messages.CONTENT_LENGTH] = str(len(body))
        self._stream.send(
            messages.routed_anew(
                address, on_body=on_body, headers=headers, body=body, scores=scores
            )
        )

    def _echo_request_body(self, rewritten: bytes | None, *, end_of_stream: bool) -> None:
        body = bytes(self._body) if rewritten is None else rewritten
        answers = messages.echoed_request(body, end_of_stream=end_of_stream)
        if len(body) <= messages.MAX_BODY_CHUNK_BYTES:
            self._send_all(answers)
            return
        self._echo = iter(answers)
        self._keep_only(len(body))
        self._echo_on()

    def _keep_only(self, body_bytes: int) -> None:
        """Hold nothing but the body that goes back to Envoy."""
        surplus = self.held_bytes - body_bytes
        self._body_bytes, self._extra_bytes = body_bytes, 0
        self._held.release(surplus)

    def _echo_on(self) -> None:
        """Give back as much of the body as there is room for; ``writable`` goes on."""
        stream, echo = self._stream, self._echo
        for answer in echo or ():
            stream.send(answer)
            # The transport counts it from now on, if it has to wait there. After it was sent: a
            # release may have this stream called again.
            sent_bytes = min(self._body_bytes, messages.MAX_BODY_CHUNK_BYTES)
            self._body_bytes -= sent_bytes
            self._held.release(sent_bytes)
            if not stream.is_writable:
                return
        self._echo = None
        self._drop_body()
        self._send_due()

    def _send_due(self) -> None:
        due, self._due = self._due, ()
        self._send_all(due)

    def _answer_trailers_in_turn(self) -> None:
        self._due = (messages.CONTINUE_REQUEST_TRAILERS,)
        if self._echo is None:
            self._send_due()

    def _pass_request_body(self, rewritten: bytes | None) -> None:
        """Answer every chunk: another body takes the place of the first, the others go."""
        replaced = rewritten
        for _ in range(self._chunks):
            self._stream.send(messages.streamed_request(replaced))
            replaced = None if rewritten is None else b""

    def _late_request_body(self, _chunk: RequestChunk, _: MessageContext) -> None:
        """Envoy may repeat the end of a body over 1 MB (envoy#46237); it was answered once."""

    def _late_request_trailers(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        """Trailers after a buffered body, or after one that is not sent here."""
        self._answer_trailers_in_turn()

    def _trailers_meanwhile(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        """The same while the request is decided: in order, so after the answer to its body."""
        self._due = (messages.CONTINUE_REQUEST_TRAILERS,)

    TRANSITIONS: ClassVar[Transitions] = {
        (ExtProcState.REQUEST_HEADERS, "request_headers"): _request_headers,
        (ExtProcState.REQUEST_BODY, "request_body"): _request_body,
        (ExtProcState.REQUEST_BODY, "request_trailers"): _request_trailers,
        (ExtProcState.DECIDING, "request_body"): _late_request_body,
        (ExtProcState.DECIDING, "request_trailers"): _trailers_meanwhile,
        (ExtProcState.RESPONSE_HEADERS, "request_body"): _late_request_body,
        (ExtProcState.RESPONSE_BODY, "request_body"): _late_request_body,
        (ExtProcState.RESPONSE_HEADERS, "request_trailers"): _late_request_trailers,
        (ExtProcState.RESPONSE_BODY, "request_trailers"): _late_request_trailers,
    }
