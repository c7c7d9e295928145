"""Headers by which a client changes what the endpoint picker does, and how to do without them.

A gateway should take them off, or set them itself by who the client is. Where it cannot, the
endpoint picker ignores those that it is told to, as if they had not come. They are taken off the
request all the same, as far as they are control headers.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from epp.request_control.policies import (
    FAIRNESS,
    OBJECTIVE,
    OLD_FAIRNESS,
    OLD_OBJECTIVE,
    OLD_REWRITE,
    REWRITE,
)
from epp.request_control.queued import TTL_HEADER

CLIENT_HEADERS: Final = frozenset(
    {
        FAIRNESS,
        OLD_FAIRNESS,
        OBJECTIVE,
        OLD_OBJECTIVE,
        REWRITE,
        OLD_REWRITE,
        TTL_HEADER,
        "x-llm-d-slo-ttft-ms",
        "x-slo-ttft-ms",
        "x-llm-d-slo-tpot-ms",
        "x-slo-tpot-ms",
        "x-llm-d-video-fps",
        "x-llm-d-video-duration-seconds",
        "x-llm-d-video-resolution",
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
)
"""By lower-case name: those that requests are read for, the ones of plugins by default among them.
What a configuration calls otherwise (``headerName``) it may as well leave out."""

_ALL: Final = "all"


def headers_to_ignore(text: str) -> frozenset[str]:
    """Return the names in ``text``, parted by commas; ``all`` for all there are.

    Raises:
        ValueError: A name is none of them.
    """
    names = {name.strip().lower() for name in text.split(",") if name.strip()}
    if names == {_ALL}:
        return CLIENT_HEADERS
    for name in sorted(names - CLIENT_HEADERS):
        near = get_close_matches(name, CLIENT_HEADERS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it is one of {_ALL}, {_listed()}"
        raise ValueError(f"no request is read for the header {name!r}; {hint}")
    return frozenset(names)


def without(headers: Mapping[str, str], ignored: frozenset[str]) -> Mapping[str, str]:
    """Return ``headers`` but for those that are ignored."""
    if ignored.isdisjoint(headers):
        return headers
    return {name: value for name, value in headers.items() if name not in ignored}


def _listed() -> str:
    return ", ".join(sorted(CLIENT_HEADERS))
