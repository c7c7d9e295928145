"""Decides who may read the metrics port, by the bearer token of a request."""

from http import HTTPStatus
from typing import Protocol

from epp.observability.http_connection import Request, Response

_SCHEME = "bearer "


class AccessVerdict(Protocol):
    """A decision about one request."""

    @property
    def status(self) -> HTTPStatus:
        """OK if the request is allowed; else the status to refuse it with."""

    @property
    def text(self) -> str:
        """Why it is refused, for the client."""


class Authorizer(Protocol):
    """Decides about requests by their bearer tokens.

    Both methods are called on the loop of the HTTP server, which has a thread of its own, so pages
    that do not need the main event loop are served while that is blocked. An authorizer must not
    share connections with the main event loop.
    """

    async def allows(self, token: str, path: str, verb: str) -> AccessVerdict:
        """Decide about a request.

        Args:
            token: The bearer token; empty if there is none.
            path: The decoded path, without the query.
            verb: The method in lower case, as RBAC names it for paths; ``get`` for HEAD, too.
        """

    async def close(self) -> None:
        """Close all connections; called once, after the last decision."""


def bearer_token(request: Request) -> str:
    """Return the bearer token of a request; empty if it has none."""
    given = request.headers.get("authorization", "")
    return given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""


async def refusal(authorizer: Authorizer, request: Request, path: str) -> Response | None:
    """Return why a request is refused; None if it is allowed."""
    verb = "get" if request.method == "HEAD" else request.method.lower()
    verdict = await authorizer.allows(bearer_token(request), path, verb)
    if verdict.status is HTTPStatus.OK:
        return None
    is_unknown = verdict.status is HTTPStatus.UNAUTHORIZED
    headers = (("WWW-Authenticate", "Bearer"),) if is_unknown else ()
    return Response.of_error(verdict.status, verdict.text, *headers)
