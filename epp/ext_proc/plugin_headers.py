"""Validates the headers that plugins set or remove, before they go to Envoy.

Envoy ends a stream with an error for a single invalid header, and values often contain client
input. An invalid header is therefore omitted and logged; the request continues with the others.
"""

import re
from collections.abc import Mapping
from typing import Any

import structlog

from epp.ext_proc.processing_response import CONTENT_LENGTH, DESTINATION

_OWN = frozenset({DESTINATION, CONTENT_LENGTH, "transfer-encoding"})
"""Set only by this EPP or by Envoy: they determine a request's destination and its length."""

# RFC 9110 §5.6.2, in lower case (RFC 9113 §8.2.1); a pseudo header begins with a colon.
_is_name = re.compile(r":?[!#$%&'*+.^_`|~0-9a-z-]+").fullmatch
# RFC 9110 §5.5; characters beyond ASCII are sent as UTF-8, which cannot encode surrogates.
_is_value = re.compile(r"[\t\x20-\x7e\x80-\ud7ff\ue000-\U0010ffff]*").fullmatch

log = structlog.get_logger(__name__)


def sendable(headers: Mapping[str, str | None], request_id: str) -> dict[str, str | None]:
    """Return the valid ones of ``headers``, by lower-case name; None removes a header."""
    result: dict[str, str | None] = {}
    given: Any = headers  # a plugin may return anything
    if not isinstance(given, Mapping):
        problem = f"headers must be a mapping of names to values, not {type(given).__name__}"
        log.error("invalid headers of a plugin omitted", request_id=request_id, problem=problem)
        return result
    for name, value in given.items():
        problem = _problem(name, value)
        if problem:
            log.error(
                "invalid header of a plugin omitted",
                request_id=request_id,
                header=name,
                problem=problem,
            )
        else:
            result[name.lower()] = value
    return result


def _problem(name: object, value: object) -> str:
    if not isinstance(name, str) or not _is_name(name.lower()):
        return "a header name may only have letters, digits and !#$%&'*+-.^_`|~"
    if name.lower() in _OWN:
        return "the endpoint picker and Envoy set this header themselves"
    kind = type(value).__name__
    if value is not None and not isinstance(value, str):
        return f"the value must be a string, or None to remove the header, not {kind}"
    if value is not None and not _is_value(value):
        return "the value has a control character (a line break?) or cannot be written as UTF-8"
    return ""
