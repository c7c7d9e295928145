"""Authorizes clients of the metrics port by the cluster's RBAC."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import structlog

from epp.kubernetes.api import ApiClient, ConfigurationError, Connection
from epp.kubernetes.token_reviews import Reviews, ReviewVerdict

_log = structlog.get_logger(__name__)


class TokenAuthorizer:
    """An ``Authorizer`` that asks the Kubernetes API; it connects with the first request.

    Args:
        connect: Finds the API server; blocks.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._reviews: Reviews | None = None

    async def allows(self, token: str, path: str, verb: str) -> ReviewVerdict:
        """Decide about a request."""
        if self._reviews is None:
            try:
                connection = await asyncio.to_thread(self._connect)
            except ConfigurationError as error:
                _log.error("tokens of the metrics port cannot be checked", reason=str(error))
                return ReviewVerdict(
                    HTTPStatus.SERVICE_UNAVAILABLE, "tokens cannot be checked; see the log"
                )
            if self._reviews is None:  # no other request came first
                self._reviews = Reviews(ApiClient(connection))
        return await self._reviews.allows(token, path, verb)

    async def close(self) -> None:
        """Close all connections."""
        if self._reviews is not None:
            await self._reviews.close()
