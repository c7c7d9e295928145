"""Headers with which a client influences the endpoint picker's decision.

The gateway should remove them, or set them from the client's identity. Where it cannot, the
endpoint picker ignores the ones that the operator names, as if the client had not sent them. Those
that are control headers are still removed before the request reaches the model server.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from epp.ext_proc.control_headers import CLIENT_CONTROL_HEADERS

CLIENT_HEADERS: Final = CLIENT_CONTROL_HEADERS | {
    "x-session-token",
    "x-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "epp-profile",
    "test-epp-endpoint-selection",
    "x-original-path",
    "x-forwarded-path",
}
"""All request headers that the endpoint picker reads, by lower-case name; those of plugins by their
default name. A header that a plugin reads by a configured name (``headerName``) is not ignored."""

_ALL: Final = "all"


def headers_to_ignore(text: str) -> frozenset[str]:
    """Return the names in ``text``, separated by commas; ``all`` means every one.

    Raises:
        ValueError: A name is not in :data:`CLIENT_HEADERS`.
    """
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    if names == {_ALL}:
        return CLIENT_HEADERS
    for name in sorted(names - CLIENT_HEADERS):
        near = get_close_matches(name, CLIENT_HEADERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it is one of {_ALL}, {_listed()}"
        raise ValueError(f"the endpoint picker does not read the header {name!r}; {hint}")
    return frozenset(names)


def without(headers: Mapping[str, str], ignored: frozenset[str]) -> Mapping[str, str]:
    """Return ``headers`` without the ignored ones."""
    if not ignored or ignored.isdisjoint(headers):
        return headers
    return {name: value for name, value in headers.items() if name not in ignored}


def _listed() -> str:
    return ", ".join(sorted(CLIENT_HEADERS))
