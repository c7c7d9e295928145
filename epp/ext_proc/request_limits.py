"""Whether anything can come of a request, as its headers show."""

from collections.abc import Mapping

from epp.ext_proc.modes import NONE, BodyModes, problem
from epp.ext_proc.processing_response import CONTENT_LENGTH
from epp.ext_proc.settings import ExtProcSettings
from epp.request_control import (
    BodyTooLargeError,
    HeadersTooLargeError,
    RequestError,
    UnsupportedModeError,
)

_LENGTH_DIGITS = 20
"""A content-length with more digits counts more bytes than there are."""


def rejection(
    modes: BodyModes, header_bytes: int, headers: Mapping[str, str], settings: ExtProcSettings
) -> RequestError | None:
    """Return why nothing can come of a request; None if something may.

    Args:
        modes: How its body comes.
        header_bytes: Size of its headers in Envoy's message.
        headers: By lower-case name.
        settings: The limits.
    """
    if change := problem(modes):
        return UnsupportedModeError(f"Envoy's ext_proc filter is configured so that {change}")
    if header_bytes > settings.max_header_bytes:
        return HeadersTooLargeError(
            f"the request's headers take {header_bytes} bytes,"
            f" {settings.max_header_bytes} are taken in"
        )
    told = headers.get(CONTENT_LENGTH, "")
    # Of a body that is not sent here only Envoy and the model server know what they can take.
    if told.isdecimal() and modes.request != NONE and _is_more(told, settings.max_body_bytes):
        return too_large(told, settings)
    return None


def too_large(body_bytes: str, settings: ExtProcSettings) -> BodyTooLargeError:
    """Return the error for a body of ``body_bytes``, as words say it."""
    limit = settings.max_body_bytes
    return BodyTooLargeError(f"the request's body has {body_bytes} bytes, {limit} are taken in")


def _is_more(content_length: str, limit: int) -> bool:
    # Python refuses to make a number of some thousand digits.
    return len(content_length) > _LENGTH_DIGITS or int(content_length) > limit
