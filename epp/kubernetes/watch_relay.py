"""A relay of lists and watches: several processes follow the same objects through a single watch.

To its clients the relay is an API server that supports only lists and watches. For each scope that
a client requests, it follows the objects at the real API server with one watch, like any other
client, and answers from its copy. So the clients use the same reflectors as a process that calls
the API server itself.

A copy that cannot be kept current is not passed on: open watches end, and calls are answered with
the failure. So each client keeps its last objects and reports why they are outdated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl

import structlog

from epp.kubernetes.api import (
    ApiError,
    ConfigurationError,
    ConnectionFailedError,
    KubernetesApiError,
)
from epp.kubernetes.api.relayed_errors import written
from epp.kubernetes.api.resource import ApiCall
from epp.kubernetes.shared_client import SharedClient
from epp.kubernetes.shared_watch import SharedWatch, WatchScope
from epp.observability import Response
from epp.observability.http_connection import Request

_log = structlog.get_logger(__name__)

_JSON: Final = "application/json"
_PATIENCE_SECONDS: Final = 25.0
"""Time for which a call waits for the copy; clients wait 30 s for a watch to open."""
_GONE: Final = 410


class WatchRelay:
    """Answers lists and watches; all its methods belong to one event loop.

    Args:
        client: The API server.
        sleep: Waits between two attempts after a failure.
    """

    def __init__(
        self,
        client: SharedClient,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._sleep = sleep
        self._watches: dict[WatchScope, SharedWatch] = {}
        self._tasks: dict[SharedWatch, asyncio.Task[None]] = {}

    @property
    def scopes(self) -> int:
        """Number of watches at the API server."""
        return len(self._watches)

    async def respond(self, request: Request) -> Response:
        """Return the response to a list or a watch."""
        path, _, raw_query = request.target.decode("latin-1").partition("?")
        query = dict(parse_qsl(raw_query))
        scope = WatchScope.of(path, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if scope is None:
            return Response.of_error(HTTPStatus.NOT_FOUND, f"{path} is no collection of objects")
        watch = self._watch_of(scope)
        with watch.used():
            fault = await _fault_of(watch)
            if fault is not None:
                return _refused(fault)
            if "watch" not in query:
                return Response(HTTPStatus.OK, _JSON, watch.listed())
            version = query.get("resourceVersion", "")
            number = watch.number_after(version) if version else None
            if version and number is None:
                return _refused(_expired(scope, version))
            return Response(HTTPStatus.OK, _JSON, b"", stream=lambda: watch.events(number))

    async def close(self) -> None:
        """End all watches."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _watch_of(self, scope: WatchScope) -> SharedWatch:
        """Return the watch of a scope, which begins with the first request for it."""
        watch = self._watches.get(scope)
        if watch is None:
            watch = SharedWatch(scope, self._end)
            self._watches[scope] = watch
            name = f"watch of {scope.resource.full_name}"
            self._tasks[watch] = asyncio.create_task(self._follow(watch), name=name)
        return watch

    async def _follow(self, watch: SharedWatch) -> None:
        try:
            await watch.run(self._client, self._sleep)
        except ConfigurationError as error:
            self._fail(watch, error)
        except Exception as error:
            _log.exception("watch failed", resource=watch.scope.resource.full_name)
            text = f"the watch relay has failed: {type(error).__name__}: {error}"
            self._fail(watch, ConnectionFailedError(text))
        finally:
            del self._tasks[watch]

    def _fail(self, watch: SharedWatch, error: KubernetesApiError) -> None:
        """Forget a watch that has ended; the next request begins another one."""
        del self._watches[watch.scope]
        watch.fail(error)

    def _end(self, watch: SharedWatch) -> None:
        """End an unused watch."""
        if self._watches.get(watch.scope) is watch:
            del self._watches[watch.scope]
            self._tasks[watch].cancel()


async def _fault_of(watch: SharedWatch) -> KubernetesApiError | None:
    """Return why a watch is not current; None if it is."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await watch.until_current()
    except TimeoutError:
        text = f"the API server has not sent all objects within {_PATIENCE_SECONDS:g} s"
        return ConnectionFailedError(text)


def _expired(scope: WatchScope, version: str) -> ApiError:
    call = ApiCall(verb="watch", resource=scope.resource, namespace=scope.namespace)
    text = f"the watch relay does not have all changes since resource version {version}"
    return ApiError(_GONE, "Expired", text, call)


def _refused(error: KubernetesApiError) -> Response:
    return Response(HTTPStatus.SERVICE_UNAVAILABLE, _JSON, written(error))
