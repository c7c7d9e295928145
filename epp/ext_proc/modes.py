"""Envoy's body modes: which pairs of them work, and what to change about the others."""

from typing import NamedTuple

from epp.pb.envoy.service.ext_proc.v3 import external_processor_pb2 as pb

NONE = pb.ProcessingMode.NONE
STREAMED = pb.ProcessingMode.STREAMED
BUFFERED = pb.ProcessingMode.BUFFERED
BUFFERED_PARTIAL = pb.ProcessingMode.BUFFERED_PARTIAL
FULL_DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED
"""Body modes by the numbers that Envoy sends."""

HELD = frozenset({BUFFERED, BUFFERED_PARTIAL})
"""Request modes in which the body comes in one message, after an answer to the headers."""

_KNOWN = frozenset({NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX})


class BodyModes(NamedTuple):
    """How Envoy's filter is configured, as the first message of a stream tells it."""

    request: int
    response: int
    sends_ahead: bool = False
    """It sends the body without waiting for the answer to the headers; matters in STREAMED."""


ASSUMED = BodyModes(FULL_DUPLEX, FULL_DUPLEX)
"""Of an Envoy too old to tell: the only modes that the reference EPP can do, so what is in use."""


def problem(modes: BodyModes) -> str:
    """Return what is wrong with ``modes`` and what to change in Envoy; "" if they work."""
    request, response, sends_ahead = modes
    if request == STREAMED and not sends_ahead:
        return (
            "request bodies come in mode STREAMED, in which Envoy waits for an answer to the"
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
    """Return the mode's name; its number for one that a newer Envoy has."""
    values = pb.ProcessingMode.BodySendMode.DESCRIPTOR.values_by_number
    return values[mode].name if mode in values else str(mode)
