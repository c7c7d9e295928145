"""The ext_proc stream of one HTTP request: a state machine without I/O and without a clock.

gRPC messages come in as bytes, and replies go out through the transport's stream at once. The first
message carries ``protocol_config``: Envoy's body modes decide which message is answered when. What
a message does depends on the state and on the kind of the message: ``transitions``, at the end,
has every pair that Envoy may send. The stream holds the two bodies (:mod:`.request_body`,
:mod:`.response_body`), which reply to their own chunks.

The request, by the mode of its body:

* FULL_DUPLEX_STREAMED: Envoy sends headers and body without waiting. Both are answered when the
  body is complete; then the body itself is sent back.
* STREAMED, sent without waiting: the same, but every chunk gets a reply that lets it pass.
  Without that flag Envoy waits for a reply to the headers: refused.
* BUFFERED: Envoy waits for a reply to the headers before it sends the body in one message; the
  reply to the body sets the destination. BUFFERED_PARTIAL is the same, but a body larger than
  Envoy's buffer comes without its end: refused.
* No body, or mode NONE: the reply to the headers sets the destination.

A decision may take a while. Nothing is answered until it is made; what Envoy sends meanwhile is
answered after it. If the stream ends meanwhile, the decision is cancelled.

From the response's headers on, no reply may replace the response: whatever goes wrong, it passes.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import structlog
from google.protobuf.message import DecodeError

from epp.ext_proc import client_headers, processing_request, processing_response, trace_facts
from epp.ext_proc.gateway_metadata import DEFAULT, GatewayAbilities
from epp.ext_proc.header_replies import response_headers_reply, routing_reply
from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.interfaces import RequestHandler, TransportStream
from epp.ext_proc.modes import ASSUMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, NONE
from epp.ext_proc.processing_request import Chunk, Head, MessageContext, RequestChunk
from epp.ext_proc.request_body import RequestBody
from epp.ext_proc.request_ids import new_request_id
from epp.ext_proc.request_limits import rejection
from epp.ext_proc.response_body import ResponseBody, is_worth_requesting, report
from epp.ext_proc.response_head import LazyResponseHead
from epp.ext_proc.settings import ExtProcSettings
from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from epp.request_control import (
    BodyTimeoutError,
    EndCause,
    EvictedError,
    InternalError,
    PendingDecision,
    Refusals,
    RequestError,
    ResponseTimeoutError,
    RoutedRequest,
    ShuttingDownError,
    TooManyStreamsError,
    UnsupportedModeError,
)
from epp.tracing import NO_HEADERS, UNCHANGED, RequestTrace, Tracer

log: Final = structlog.get_logger(__name__)


class ExtProcState(Enum):
    """What the stream waits for; names follow Envoy's phases."""

    # By identity: Enum hashes a member's name in Python, 0.15 us of the 1.6 that a chunk costs.
    __hash__ = object.__hash__

    REQUEST_HEADERS = auto()
    REQUEST_BODY = auto()
    DECIDING = auto()
    """The request is complete, and its decision is pending."""
    RESPONSE_HEADERS = auto()
    RESPONSE_BODY = auto()
    CLOSED = auto()


# Reading a member from its class takes about 0.15 us on Python 3.11, some 14 times a request.
# Final, because compiled code looks up other names of a module in a dict.
_REQUEST_HEADERS: Final = ExtProcState.REQUEST_HEADERS
_REQUEST_BODY: Final = ExtProcState.REQUEST_BODY
_DECIDING: Final = ExtProcState.DECIDING
_RESPONSE_HEADERS: Final = ExtProcState.RESPONSE_HEADERS
_RESPONSE_BODY: Final = ExtProcState.RESPONSE_BODY
_CLOSED: Final = ExtProcState.CLOSED
_COMPLETED: Final = EndCause.COMPLETED
_ENDED: Final = EndCause.ENDED
_CLIENT_LEFT: Final = EndCause.CLIENT_DISCONNECT

_UNDECIDED: Final = frozenset({_REQUEST_HEADERS, _REQUEST_BODY, _DECIDING})
"""States in which Envoy holds the request until a reply names its destination."""

Transitions = dict[ExtProcState, dict[str | None, Callable[[Any, Any, Any], None]]]
"""What a stream does with each kind of message in each state.

An action gets the stream, the content of the message (its headers, trailers or chunk), and its
:class:`~epp.ext_proc.processing_request.MessageContext`.
"""

_ABANDONED: Final = frozenset({EndCause.CLIENT_DISCONNECT, EndCause.DRAINED})


class ExtProcStream:
    """One HTTP request, from its headers to the end of its stream.

    Args:
        transport: Where replies are sent.
        handler: Decides the request.
        clock: Monotonic seconds.
        on_close: Called once, at the end.
        settings: Limits, and the form of the replies.
        refusals: Counts and logs requests that the director never sees.
        held: The memory account.
        gateway: What the gateway can do.
        gateway_headers: The gRPC headers of the stream.
        tracer: Traces the request; None without tracing.
    """

    __slots__ = (
        "_after_body",
        "_clock",
        "_end_in_pause",
        "_gateway",
        "_gateway_headers",
        "_handler",
        "_headers",
        "_is_new_id",
        "_modes",
        "_on_close",
        "_pending",
        "_propagated",
        "_received_at",
        "_refusals",
        "_request_id",
        "_response_body",
        "_routed",
        "_settings",
        "_subset",
        "_trace",
        "_tracer",
        "_transport",
        "is_surplus",
        "on_message",
        "request_body",
        "state",
    )

    def __init__(
        self,
        transport: TransportStream,
        handler: RequestHandler,
        clock: Callable[[], float],
        on_close: Callable[["ExtProcStream"], None],
        *,
        settings: ExtProcSettings,
        refusals: Refusals,
        held: HeldBytes,
        gateway: GatewayAbilities = DEFAULT,
        gateway_headers: Mapping[str, str] = NO_HEADERS,
        tracer: Tracer | None = None,
    ) -> None:
        self.state = _REQUEST_HEADERS
        self.is_surplus = False
        """Whether too many other streams are open, so that the request is refused."""
        self.on_message: Callable[[ExtProcStream], None] | None = None
        """Called at each message."""
        self.request_body = RequestBody(transport, held, handler, settings)
        self._transport = transport
        self._handler = handler
        self._clock = clock
        self._on_close = on_close
        self._settings = settings
        self._refusals = refusals
        self._gateway = gateway
        self._gateway_headers = gateway_headers
        self._tracer = tracer
        self._trace: RequestTrace | None = None
        self._propagated = UNCHANGED
        self._headers: dict[str, str] = {}
        self._request_id = ""
        self._is_new_id = False
        self._received_at = 0.0
        self._subset: Sequence[str] | None = None
        self._modes = ASSUMED
        self._pending: PendingDecision | None = None
        self._routed: RoutedRequest | None = None
        self._after_body = b""
        """The reply to the request's trailers, until all of the body has gone back."""
        self._response_body: ResponseBody | None = None
        """None before the response's headers, and if Envoy does not send the body."""
        self._end_in_pause: EndCause | None = None

    # --- what the transport calls ---------------------------------------------------------------

    def message(self, data: bytes) -> None:
        """Process one ProcessingRequest."""
        if self.on_message is not None:
            self.on_message(self)
        state = self.state
        if state is _CLOSED or (state is _RESPONSE_BODY and self._pass_plain_chunk(data)):
            return
        try:
            kind, content, context = processing_request.decode(data)
        except DecodeError:
            log.error(  # noqa: TRY400 - the bytes are Envoy's, a traceback of ours says nothing
                "ext_proc message unreadable",
                request_id=self._request_id,
                message_bytes=len(data),
                state=state.name,
            )
            self._fail("Envoy sent a message that is no ProcessingRequest")
            return
        try:
            self._act(_TRANSITIONS[state].get(kind), kind, content, context)
        except Exception as error:
            self._fail_on_bug(error)

    def _act(
        self,
        action: Callable[[Any, Any, Any], None] | None,
        kind: str | None,
        content: object,
        context: MessageContext,
    ) -> None:
        try:
            if action is None:
                self._out_of_order(kind)
            else:
                action(self, content, context)
        except RequestError as error:
            self._send_error(error)  # may fail as well, if a plugin made the error

    def half_closed(self) -> None:
        """Envoy has no more messages: the HTTP stream is over."""
        self.reset()
        self._transport.finish()

    def reset(self) -> None:
        """Envoy, or the connection, is gone."""
        if self.state is _RESPONSE_BODY and self._is_end_invisible():
            self.close(_ENDED)
        else:
            self.close(_CLIENT_LEFT)

    def _is_end_invisible(self) -> bool:
        """Return whether the natural end of the response looks like a client's abort."""
        body = self._response_body
        if body is not None and body.has_begun:
            return self._modes.response == BUFFERED_PARTIAL  # the rest of a long body never comes
        return self._modes is ASSUMED or self._modes.response == NONE

    def writable(self) -> None:
        """Send back more of a long request body."""
        if self.request_body.is_echoing and self.request_body.continue_echo():
            self._send_after_body()

    # --- the request ----------------------------------------------------------------------------

    def _request_headers(self, head: Head, context: MessageContext) -> None:
        self._received_at = now = self._clock()
        headers, size, end_of_stream = head
        self._headers = headers
        request_id = headers.get(processing_response.REQUEST_ID)
        if not request_id:
            request_id = headers[processing_response.REQUEST_ID] = new_request_id()
            self._is_new_id = True
        self._request_id = request_id
        if self._tracer is not None:
            self._trace, self._propagated = self._tracer.begin(headers, self._gateway_headers)
        self._subset = context.subset
        if context.body_modes is not None:
            self._modes = context.body_modes
        modes, body = self._modes, self.request_body
        body.begin(modes.request, headers, now)
        if self.is_surplus:
            self._reject(
                TooManyStreamsError(f"no more than {self._settings.max_streams} may be open")
            )
        elif error := rejection(modes, size, headers, self._settings):
            self._reject(error)
        elif end_of_stream or modes.request == NONE:
            self._decide()
        else:
            self.state = _REQUEST_BODY
            try:
                body.expect(size, self._reject)
            except RequestError as no_room:
                self._reject(no_room)
                return
            if body.is_buffered:
                self._transport.send(processing_response.CONTINUE_REQUEST_HEADERS)

    def _request_chunk(self, chunk: RequestChunk, _: MessageContext) -> None:
        data, end_of_stream = chunk
        try:
            is_complete = self.request_body.add(data, end_of_stream)
        except RequestError as error:
            self._reject(error)
            return
        if is_complete:
            self._decide()

    def _request_trailers(self, message: pb.HttpTrailers, _: MessageContext) -> None:
        """Decide a request whose body ended with trailers instead of an end-of-stream flag."""
        if self.request_body.is_buffered:
            self._out_of_order("request_trailers")  # its body comes first
        else:
            self._decide(has_trailers=True)

    def _repeated_request_chunk(self, _chunk: RequestChunk, _: MessageContext) -> None:
        """Ignore the end of a body over 1 MB, which Envoy may repeat (envoy#46237)."""

    def _early_request_trailers(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        """Keep the reply to trailers before the decision; it follows the reply to the body."""
        self._after_body = processing_response.CONTINUE_REQUEST_TRAILERS

    def _late_request_trailers(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        """Reply to trailers after a buffered body, or after one that Envoy does not send here."""
        self._after_body = processing_response.CONTINUE_REQUEST_TRAILERS
        if not self.request_body.is_echoing:
            self._send_after_body()

    def _send_after_body(self) -> None:
        if reply := self._after_body:
            self._after_body = b""
            self._transport.send(reply)

    # --- the decision ---------------------------------------------------------------------------

    def _decide(self, *, has_trailers: bool = False) -> None:
        """Have the director decide the request, which is complete."""
        self.state = _DECIDING
        body, trace = self.request_body, self._trace
        if trace is not None:
            trace.begin_decision()
        try:
            decision = self._handler.handle(
                request_id=self._request_id,
                body=body.complete(),
                headers=client_headers.without(
                    self._headers, self._settings.ignored_client_headers
                ),
                received_at=self._received_at,
                subset=self._subset,
                memory=body,
                trace=trace,
            )
        finally:
            if trace is not None:
                trace.end_step()
        # Not PendingDecision, an ABC: checking for one takes 2 thousand instructions.
        if isinstance(decision, RoutedRequest):
            self._route(decision, has_trailers)
        else:
            self._pending = decision
            decision.then(partial(self._decided, has_trailers))

    def _decided(self, has_trailers: bool, outcome: RoutedRequest | RequestError) -> None:
        self._pending = None
        try:
            if isinstance(outcome, RequestError):
                self._send_error(outcome)
            else:
                self._route(outcome, has_trailers)
        except Exception as error:
            self._fail_on_bug(error)

    def _route(self, routed: RoutedRequest, has_trailers: bool) -> None:
        self._routed = routed
        self.state = _RESPONSE_HEADERS
        if routed.in_flight is not None:
            routed.on_revoked = self.evict
        body = self.request_body
        if self._trace is not None:
            trace_facts.take_decision(self._trace, routed)
        reply = routing_reply(
            routed,
            self._headers,
            self._settings,
            request_id=self._request_id,
            is_new_id=self._is_new_id,
            on_body=body.chunks > 0 and body.is_buffered,
            gateway=self._gateway,
            propagated=self._propagated,
        )
        self._transport.send(reply)
        if has_trailers:
            self._after_body = processing_response.CONTINUE_REQUEST_TRAILERS
        body.give_back(routed.body, not has_trailers)
        if body.chunks:
            routed.body_sent()
        if self._after_body and not body.is_echoing:
            self._send_after_body()

    # --- the response ---------------------------------------------------------------------------

    def _response_headers(self, head: LazyResponseHead, context: MessageContext) -> None:
        routed = self._routed
        has_body = not head.end_of_stream and self._gets_response_body(routed)
        if routed is not None:
            head.read(whole=has_body or routed.wants_response_headers)
        # Before anything else happens: from here on no reply may replace the response.
        self.state = _RESPONSE_BODY
        began_at = self._clock()
        if self._trace is not None:
            self._trace.begin_response()
        if has_body:
            self._response_body = ResponseBody(
                self._transport, self._modes.response, routed, self._request_id
            )
        if routed is None:
            self._transport.send(processing_response.CONTINUE_RESPONSE_HEADERS)
        else:
            if context.served:
                routed.served_by(context.served)
            routed.response_source = context.response_source
            reply = response_headers_reply(
                routed, self._response_body, head, context.served, self._request_id
            )
            if error := routed.unserved():
                routed.metrics.error(error.code)
                self._send_error(error, EndCause.ERROR)
                return
            self._transport.send(reply)
            routed.response_seconds = self._clock() - began_at
        if head.end_of_stream:
            self.close(_COMPLETED)

    def _gets_response_body(self, routed: RoutedRequest | None) -> bool:
        """Return whether Envoy sends the response's body, or must be asked for it.

        In adaptive mode the reply to the headers may request it. Envoy ignores the request if its
        filter does not allow mode overrides; the stream then works without the body.
        """
        modes = self._modes
        return modes.response != NONE or (
            routed is not None
            and modes.request == BUFFERED
            and is_worth_requesting(routed, self._request_id, self._settings.sample_usage)
        )

    def _unsent_response_headers(self, _head: LazyResponseHead, _context: MessageContext) -> None:
        """Pass Envoy's own response to a request that it never sent here, such as a 400."""
        self._detach(_COMPLETED)

    def _early_response_headers(self, head: LazyResponseHead, context: MessageContext) -> None:
        """Pass Envoy's own response to an undecided request, such as 413 to a long body."""
        self.request_body.drop()
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel(EndCause.ERROR)
        self._response_headers(head, context)

    def _response_chunk(self, chunk: Chunk, _: MessageContext) -> None:
        began_at = self._clock()
        data, end_of_stream = chunk
        body, routed = self._response_body, self._routed
        if body is None:  # unrequested
            reply = processing_response.CONTINUE_RESPONSE_BODY
            self._transport.send(reply + report(routed, None) if end_of_stream else reply)
        else:
            body.pass_chunk(data, end_of_stream, began_at)
        if routed is not None:
            routed.response_seconds += self._clock() - began_at
        if end_of_stream:
            self.close(_COMPLETED)

    def _pass_plain_chunk(self, data: bytes) -> bool:
        """Pass a chunk in full duplex, if only its bytes are new: 2 us instead of 4.

        The message must consist of the heads that its size implies, the chunk, and the same fields
        as in the message before.

        Returns:
            False, with nothing done, for any other message.
        """
        body, routed = self._response_body, self._routed
        if body is None or not body.is_plain:
            return False
        after = body.after_chunk
        end = len(data) - len(after)
        before, reply = processing_response.around_plain_chunk(end)
        if not (before and data.startswith(before) and data.endswith(after)):
            is_new = not after or not data.endswith(after)
            if is_new and not data.startswith(processing_request.EMPTY_LAST_CHUNK):
                body.after_chunk = processing_request.context_bytes(data)
            return False
        began_at = self._clock()
        try:
            body.pass_plain(data[len(before) : end], reply, began_at)
        except Exception as error:
            self._fail_on_bug(error)
            return True
        if routed is not None:
            routed.response_seconds += self._clock() - began_at
        return True

    def _response_trailers(self, _message: pb.HttpTrailers, _: MessageContext) -> None:
        body, reply = self._response_body, processing_response.CONTINUE_RESPONSE_TRAILERS
        if body is None:
            self._transport.send(reply + report(self._routed, None))
        else:
            body.flush()
            self._transport.send(reply + body.report())
        self.close(_COMPLETED)

    # --- the end --------------------------------------------------------------------------------

    def close(self, cause: EndCause) -> None:
        """Release everything; idempotent. Every end of a stream leads here."""
        if self.state is _CLOSED:
            return
        if self.state is _REQUEST_BODY and cause in _ABANDONED:
            log.info(
                "request abandoned before its body was complete",
                request_id=self._request_id,
                outcome=cause.value,
            )
            if cause is not EndCause.DRAINED:  # its refusal is recorded
                self._ended_early(cause)
        self.state = _CLOSED
        is_whole = cause is _COMPLETED
        self.request_body.close(is_whole)
        # These may refer to the stream.
        routed, self._routed = self._routed, None
        pending, self._pending = self._pending, None
        body, self._response_body = self._response_body, None
        try:
            if routed is not None:
                try:
                    if body is not None:
                        body.end(self._clock(), is_whole=is_whole)
                finally:
                    routed.close(cause)
            elif pending is not None:
                pending.cancel(cause)
        finally:
            if self._trace is not None and self._tracer is not None:
                trace_facts.take_end(self._trace, self._request_id, routed, cause)
                self._tracer.finish(self._trace)
                self._trace = None
            self._on_close(self)

    @property
    def passed_bytes(self) -> int | None:
        """Bytes of the response that have passed; None if an end now would lose none of it."""
        body = self._response_body
        return body.size if body is not None and body.is_duplex else None

    def drain(self) -> None:
        """End the stream because the EPP stops; a response that has begun passes without it."""
        if self.state in _UNDECIDED:
            # Envoy would send the request on without a destination, and without the body held here.
            error = ShuttingDownError("the endpoint picker stopped before the request was decided")
            if self.state is not _REQUEST_HEADERS:
                self._count_undecided(error)
            self._send_error(error, EndCause.DRAINED)
        else:
            self._detach(EndCause.DRAINED)

    def time_out(self, limit: str, why: str) -> None:
        """End the stream because of a time limit; a response that has begun passes without it.

        A stream whose response passes through here ends later, by :meth:`end_in_pause`.

        Args:
            limit: The limit reached; a label of ``request_limit_exceeded_total``.
            why: What has taken too long.
        """
        state = self.state
        if state is _CLOSED:
            return
        self._refusals.count_limit(limit)
        if state is _RESPONSE_BODY:
            if self._modes.response == FULL_DUPLEX:
                self._end_in_pause = EndCause.TIMED_OUT
            else:
                self._detach(EndCause.TIMED_OUT)
        elif state in _UNDECIDED and state is not _DECIDING:
            self._received_at = self._received_at or self._clock()  # no headers yet, perhaps
            self._reject(BodyTimeoutError(f"the request did not come in time: {why}"))
        else:
            self._count_and_send(
                ResponseTimeoutError(f"the request was not answered in time: {why}"),
                EndCause.TIMED_OUT,
            )

    def end_in_pause(self) -> None:
        """End the stream if it has timed out while its response was passing through here."""
        if self.state is not _CLOSED and self._end_in_pause is not None:
            self._detach(self._end_in_pause)

    def evict(self) -> None:
        """End the stream to free capacity for other requests, unless its response has begun."""
        if self.state is _RESPONSE_HEADERS:
            error = EvictedError("request evicted by flow control")
            self._count_and_send(error, EndCause.EVICTED)

    # --- errors ---------------------------------------------------------------------------------

    def _out_of_order(self, kind: str | None) -> None:
        log.error(
            "ext_proc message out of order",
            request_id=self._request_id,
            message=kind,
            state=self.state.name,
        )
        if kind is not None and kind.startswith("response"):
            self._detach()
        else:
            self._fail(f"Envoy sent {kind} in state {self.state.name}")

    def _fail_on_bug(self, error: Exception) -> None:
        log.error("ext_proc stream failed", request_id=self._request_id, exc_info=error)
        self._refusals.count_fault()
        self._fail(
            f"the endpoint picker failed on this request; its log names request {self._request_id}"
        )

    def _fail(self, text: str) -> None:
        """Answer with 500; if the response has begun, let it pass without this stream instead."""
        if self.state in {_RESPONSE_BODY, _CLOSED}:
            self._detach()
        else:
            self._count_and_send(InternalError(text), EndCause.ERROR)

    def _reject(self, error: RequestError) -> None:
        """Count, log and refuse a request that the director has not seen."""
        if isinstance(error, UnsupportedModeError):
            log.error("ext_proc body mode unsupported", request_id=self._request_id, why=str(error))
        self._refusals.refused(
            error,
            request_id=self._request_id,
            request=None,
            headers=self._headers,
            received_at=self._received_at,
            trace=self._trace,
        )
        self._ended_early(error)
        self._send_error(error)

    def _ended_early(self, why: RequestError | EndCause) -> None:
        if self._request_id:  # its headers have arrived
            self._handler.ended_early(
                why,
                request_id=self._request_id,
                headers=self._headers,
                received_at=self._received_at,
            )

    def _count_undecided(self, error: RequestError) -> None:
        self._refusals.count(error, None, self._headers)
        if self.state is _REQUEST_BODY:  # later, the cancelled decision is recorded
            self._ended_early(error)

    def _count_and_send(self, error: RequestError, cause: EndCause) -> None:
        if self._routed is None:
            self._count_undecided(error)
        else:
            self._routed.metrics.error(error.code)
        self._send_error(error, cause)

    def _send_error(self, error: RequestError, cause: EndCause = EndCause.REFUSED) -> None:
        """Answer the request with an error, which is counted already, and end the stream."""
        path = self._headers.get(":path", "")
        if self._trace is not None:
            self._trace.failed(error.status, error.drop_reason or error.code, str(error))
        self._transport.send(
            processing_response.refused(error, self._request_id, self._settings, path=path)
        )
        self._close_and_finish(cause)

    def _detach(self, cause: EndCause = EndCause.ERROR) -> None:
        """End the stream; request and response pass without it."""
        if self._response_body is not None:
            self._response_body.flush()
        if self.request_body.is_echoing:
            self.request_body.flush_echo()
            self._send_after_body()
        self._close_and_finish(cause)

    def _close_and_finish(self, cause: EndCause) -> None:
        try:
            self.close(cause)
        finally:
            self._transport.finish()

    # --- what to do with each message -----------------------------------------------------------

    @classmethod
    def transitions(cls) -> Transitions:
        """Return every message that Envoy may send in each state; any other is out of order."""
        return {
            _REQUEST_HEADERS: {
                "request_headers": cls._request_headers,
                "response_headers": cls._unsent_response_headers,
            },
            _REQUEST_BODY: {
                "request_body": cls._request_chunk,
                "request_trailers": cls._request_trailers,
                "response_headers": cls._early_response_headers,
            },
            _DECIDING: {
                "request_body": cls._repeated_request_chunk,
                "request_trailers": cls._early_request_trailers,
                "response_headers": cls._early_response_headers,
            },
            _RESPONSE_HEADERS: {
                "request_body": cls._repeated_request_chunk,
                "request_trailers": cls._late_request_trailers,
                "response_headers": cls._response_headers,
            },
            _RESPONSE_BODY: {
                "request_body": cls._repeated_request_chunk,
                "request_trailers": cls._late_request_trailers,
                "response_body": cls._response_chunk,
                "response_trailers": cls._response_trailers,
            },
        }


_TRANSITIONS: Final = ExtProcStream.transitions()
