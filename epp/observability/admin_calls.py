"""Changing calls on the metrics port: POST below /debug/, with a bearer token."""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

import structlog

from epp.observability.authorization import bearer_token
from epp.observability.http_connection import Request, Response

_log = structlog.get_logger(__name__)


class AdminError(Exception):
    """A call is refused; the text says what is wrong."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


AdminAction = Callable[[Mapping[str, str]], object]
"""Makes a change and returns a JSON document; called on the loop with the query's parameters.

Raises:
    AdminError: The parameters are invalid.
"""


class AdminCalls(NamedTuple):
    """The changing calls, and who may make them."""

    actions: Callable[[], Mapping[str, AdminAction]] = dict
    """Returns the current calls by path below ``/debug/``; called in another thread."""
    token_file: Path | None = None
    """File with the bearer token, read for each call; None if changing calls are off."""

    async def refusal(self, request: Request) -> Response | None:
        """Return why this client may make no changing call; None if it may."""
        if self.token_file is None:
            return Response.of_error(
                HTTPStatus.FORBIDDEN,
                "changing calls are off; start the endpoint picker with --enable-admin-writes and"
                " --admin-token-file",
            )
        try:
            token = (await asyncio.to_thread(self.token_file.read_text)).strip()
        except (OSError, UnicodeDecodeError) as error:
            _log.error("token of changing calls cannot be read", path=str(self.token_file))
            return Response.of_error(
                HTTPStatus.SERVICE_UNAVAILABLE, f"the token file cannot be read: {error}"
            )
        if token and hmac.compare_digest(bearer_token(request).encode(), token.encode()):
            return None
        return Response.of_error(
            HTTPStatus.UNAUTHORIZED,
            "a changing call needs the header `authorization: Bearer TOKEN` with the token of"
            " --admin-token-file",
            ("WWW-Authenticate", "Bearer"),
        )


def parameters(query: bytes) -> dict[str, str]:
    """Return the parameters of a query; the last one of each name counts."""
    return dict(parse_qsl(query.decode("latin-1")))
