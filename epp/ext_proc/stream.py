"""The ext_proc stream of one HTTP request, as a state machine without I/O and without a clock.

Bytes come in as gRPC messages, answers go out through the transport's stream, at once. The first
message carries ``protocol_config``: how Envoy is configured decides who waits for whom. What is
done with a message depends on the state and on the message's kind: the tables of the two phases
(:mod:`.request_phase`, :mod:`.response_phase`) have every pair that Envoy may send.
"""

import structlog
from google.protobuf.message import DecodeError

from epp.ext_proc import reading
from epp.ext_proc.phases import ExtProcState, Transitions
from epp.ext_proc.request_phase import RequestPhase
from epp.ext_proc.response_phase import ResponsePhase
from epp.request_control import EndCause, RequestError

log = structlog.get_logger()

_TRANSITIONS: Transitions = {**RequestPhase.TRANSITIONS, **ResponsePhase.TRANSITIONS}
"""Every message that Envoy may send in each state; anything else is out of order."""


class ExtProcStream(RequestPhase, ResponsePhase):
    """One HTTP request, from its headers to the end of its stream."""

    __slots__ = ()

    def message(self, data: bytes) -> None:
        """Take one ProcessingRequest."""
        if self.state is ExtProcState.CLOSED:
            return
        try:
            kind, content, context = reading.message(data)
        except DecodeError:
            log.error(  # noqa: TRY400 - the bytes are Envoy's, a traceback of ours says nothing
                "ext_proc message unreadable",
                request_id=self._request_id,
                message_bytes=len(data),
                state=self.state.name,
            )
            self._fail("Envoy sent what is no ProcessingRequest")
            return
        action = _TRANSITIONS.get((self.state, kind))
        try:
            try:
                if action is None:
                    self._unexpected(kind)
                else:
                    action(self, content, context)
            except RequestError as error:
                self._refuse(error)  # may fail as well, if a plugin made the error
        except Exception as error:
            self._broke(error)

    def half_closed(self) -> None:
        """Envoy has no more messages: the HTTP stream is over."""
        self.reset()
        self._stream.finish()

    def reset(self) -> None:
        """Envoy, or the connection, is gone."""
        if self.state is ExtProcState.RESPONSE_BODY and self._end_is_unseen:
            # Its natural end and a client's abort look alike when the body's end is not seen.
            self.close(EndCause.ENDED)
        else:
            self.close(EndCause.CLIENT_DISCONNECT)

    def writable(self) -> None:
        """There is room for more: give back more of a long body."""
        if self._echo is not None:
            self._echo_on()
