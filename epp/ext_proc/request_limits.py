"""Refuses requests that cannot succeed, by their headers."""

from collections.abc import Mapping
from typing import Final

from epp.ext_proc.modes import NONE, BodyModes, problem
from epp.ext_proc.processing_response import CONTENT_LENGTH
from epp.ext_proc.settings import ExtProcSettings
from epp.request_control import (
    BodyTooLargeError,
    HeadersTooLargeError,
    RequestError,
    UnsupportedModeError,
)

_LENGTH_DIGITS: Final = 20
"""A content-length with more digits exceeds any limit."""


def rejection(
    modes: BodyModes, header_bytes: int, headers: Mapping[str, str], settings: ExtProcSettings
) -> RequestError | None:
    """Return the error that refuses a request; None if its headers are acceptable.

    Args:
        modes: Envoy's body modes.
        header_bytes: Size of the headers in Envoy's message.
        headers: By lower-case name.
        settings: The limits.
    """
    if change := problem(modes):
        return UnsupportedModeError(f"Envoy's ext_proc filter is configured so that {change}")
    if header_bytes > settings.max_header_bytes:
        return HeadersTooLargeError(
            f"the request's headers take {header_bytes} bytes,"
            f" the limit is {settings.max_header_bytes}"
        )
    length = headers.get(CONTENT_LENGTH, "")
    # A body that is not sent here is limited by Envoy and the model server alone.
    if length.isdecimal() and modes.request != NONE and _exceeds(length, settings.max_body_bytes):
        return too_large(length, settings)
    return None


def too_large(body_bytes: str, settings: ExtProcSettings) -> BodyTooLargeError:
    """Return the error for a body of ``body_bytes``, a number or a phrase."""
    limit = settings.max_body_bytes
    return BodyTooLargeError(f"the request's body has {body_bytes} bytes, the limit is {limit}")


def _exceeds(content_length: str, limit: int) -> bool:
    # int() raises an error for thousands of digits.
    return len(content_length) > _LENGTH_DIGITS or int(content_length) > limit
