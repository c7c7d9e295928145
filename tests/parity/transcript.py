"""The replies to Envoy for one request, as facts that can be compared one by one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

Pieces = tuple[tuple[bytes, bool], ...]
"""Pieces of a body, each with whether it is the last of the stream."""


@dataclass(slots=True)
class Transcript:
    """The facts; each case says which of them the reference's test looks at."""

    grpc_status: str = ""
    """How the EPP ended the stream; "OK" too where Envoy said that it had no more."""
    status: int = 0
    """Of the response in the model server's place; 0 if the request is routed."""
    drop_reason: str = ""
    content_type: str = ""
    retry_after: str = ""
    names_request: bool = False
    """Whether the error has the request's id in a header."""
    body: str | Mapping[str, object] = ""
    """Text of the error; a JSON error object without the request's id, which is not its own."""
    destination: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    clears_route_cache: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Set on the request besides the destination, by lower-case name."""
    removed: tuple[str, ...] = ()
    pieces: Pieces = ()
    """Of the request's body."""
    request_trailers: bool = False
    """Whether they were answered."""
    response_headers: Mapping[str, str] | None = None
    """Set on the response; None if its head was not answered."""
    response_pieces: Pieces = ()
    response_trailers: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By how much the series that the case names have grown."""

    def facts(self) -> dict[str, object]:
        """Return all facts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


FACTS = frozenset(Transcript.__slots__)

RESTORED = frozenset(
    {"status", "drop_reason", "content_type", "retry_after", "names_request", "body"}
)
"""The facts that ``--compat=reference`` makes the reference's."""


def error_of(body: bytes, request_id: str) -> str | Mapping[str, object]:
    """Return an error body for comparison; a JSON one has to name the request."""
    if not body.startswith(b"{"):
        return body.decode()
    error: dict[str, object] = json.loads(body)["error"]
    found = error.pop("request_id")
    assert isinstance(found, str)
    assert found == request_id if request_id else len(found) == 36
    return error
