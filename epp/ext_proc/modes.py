"""Envoy's body modes: which pairs work, and how to change the others."""

from typing import Final, NamedTuple

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

NONE: Final = pb.ProcessingMode.NONE
STREAMED: Final = pb.ProcessingMode.STREAMED
BUFFERED: Final = pb.ProcessingMode.BUFFERED
BUFFERED_PARTIAL: Final = pb.ProcessingMode.BUFFERED_PARTIAL
FULL_DUPLEX: Final = pb.ProcessingMode.FULL_DUPLEX_STREAMED
"""Body modes, by their numbers in ``ProcessingMode.BodySendMode``."""

HELD: Final = frozenset({BUFFERED, BUFFERED_PARTIAL})
"""Request modes in which the body comes in one message, after a reply to the headers."""

_KNOWN: Final = frozenset({NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX})


class BodyModes(NamedTuple):
    """Configuration of Envoy's filter, from the first message of a stream."""

    request: int
    response: int
    sends_ahead: bool = False
    """``send_body_without_waiting_for_header_response``; only STREAMED depends on it."""


ASSUMED: Final = BodyModes(FULL_DUPLEX, FULL_DUPLEX)
"""For an Envoy too old to send its configuration: the Go EPP supports no other modes."""


def problem(modes: BodyModes) -> str:
    """Return what is wrong with ``modes`` and what to change in Envoy; "" if they work."""
    request, response, sends_ahead = modes
    if request == STREAMED and not sends_ahead:
        return (
            "request bodies come in mode STREAMED, in which Envoy waits for a reply to the"
            " headers that depends on the body; set processing_mode.request_body_mode to"
            " FULL_DUPLEX_STREAMED or BUFFERED, or send_body_without_waiting_for_header_response"
            " to true"
        )
    if request not in _KNOWN:
        return (
            f"request bodies come in mode {name(request)}; set processing_mode.request_body_mode"
            " to FULL_DUPLEX_STREAMED or BUFFERED"
        )
    if response not in _KNOWN:
        return (
            f"response bodies come in mode {name(response)}; set"
            " processing_mode.response_body_mode to FULL_DUPLEX_STREAMED or NONE"
        )
    return ""


def name(mode: int) -> str:
    """Return the mode's name, or its number if only a newer Envoy knows it."""
    values = pb.ProcessingMode.BodySendMode.DESCRIPTOR.values_by_number
    return values[mode].name if mode in values else str(mode)
