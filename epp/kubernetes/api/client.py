"""A client for single objects, lists and watches of the Kubernetes API.

It does not retry: its callers decide what to do after a failure.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from errno import errorcode
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError

from epp.kubernetes.api.connection import Connection
from epp.kubernetes.api.errors import (
    ApiError,
    ConnectionFailedError,
    UnreachableError,
    refusal,
)
from epp.kubernetes.api.http_clients import HttpClients, open_relay
from epp.kubernetes.api.relayed_errors import restored
from epp.kubernetes.api.resource import VERSION_DOCUMENT, ApiCall, Resource, ServedResource

_T = TypeVar("_T")

_CONNECT_SECONDS: Final = 5.0
_CALL_SECONDS: Final = 10.0
_WATCH_OPEN_SECONDS: Final = 30.0
_NOT_FOUND: Final = 404

_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
"""HTTP methods by verb, as RBAC names them."""

_RELAYED: Final = frozenset({"list", "watch"})
"""Verbs of calls that a relay takes."""


class _ApiResource(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool = True


class _ApiResourceList(msgspec.Struct):
    resources: list[_ApiResource] = []


class _Version(msgspec.Struct, rename="camel"):
    git_version: str


class ApiClient:
    """Calls one API server; an async context manager that closes its connections.

    Objects are decoded into the Struct that the caller names: fields that it does not declare are
    dropped. All calls may raise:

    - ``ApiError``: the server refused;
    - ``UnreachableError``: there was no connection to the server;
    - ``ConnectionFailedError``: there was no complete response in time, or not the expected JSON.

    Args:
        connection: Server and credentials.
        timeout_seconds: Limit of a call, connecting included; not of lists and watches. Some calls
            take a limit of their own.
        relay: Socket file of a relay that takes lists and watches; None to make them directly.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_seconds: float = _CALL_SECONDS,
        relay: Path | None = None,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._http = HttpClients(connection)
        self._relay = None if relay is None else open_relay(relay)

    @property
    def connection(self) -> Connection:
        """Server and credentials; another object after a change of their files."""
        return self._http.connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; open watches fail."""
        await self._http.close()
        if self._relay is not None:
            await self._relay.aclose()

    async def get(
        self,
        resource: Resource,
        type_: type[_T],
        *,
        name: str,
        namespace: str | None = None,
        timeout_seconds: float | None = None,
    ) -> _T:
        """Return an object."""
        call = ApiCall(verb="get", resource=resource, namespace=namespace, name=name)
        return self._decode(await self._fetch(call, timeout_seconds=timeout_seconds), type_, call)

    async def post(
        self,
        resource: Resource,
        body: msgspec.Struct,
        type_: type[_T],
        *,
        namespace: str | None = None,
        timeout_seconds: float | None = None,
    ) -> _T:
        """Create an object, or a review such as a TokenReview; return the server's response.

        ``apiVersion`` and ``kind`` are added to ``body``, here and in :meth:`put`.
        """
        call = ApiCall(verb="create", resource=resource, namespace=namespace)
        content = await self._fetch(
            call, content=_document(resource, body), timeout_seconds=timeout_seconds
        )
        return self._decode(content, type_, call)

    async def put(
        self,
        resource: Resource,
        body: msgspec.Struct,
        type_: type[_T],
        *,
        name: str,
        namespace: str | None = None,
        subresource: str | None = None,
        timeout_seconds: float | None = None,
    ) -> _T:
        """Replace an object, or its ``status``, and return it.

        If ``body`` has a resource version, the server compares it and refuses with 409 if the
        object has changed since. Whatever ``body`` does not declare is removed from the object: use
        :meth:`patch` for objects that others write, too.
        """
        call = ApiCall(
            verb="update",
            resource=resource,
            namespace=namespace,
            name=name,
            subresource=subresource,
        )
        content = await self._fetch(
            call, content=_document(resource, body), timeout_seconds=timeout_seconds
        )
        return self._decode(content, type_, call)

    async def patch(
        self,
        resource: Resource,
        patch: msgspec.Struct | Mapping[str, Any],
        type_: type[_T],
        *,
        name: str,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> _T:
        """Apply a JSON merge patch (RFC 7396) to an object or its ``status``, and return it."""
        call = ApiCall(
            verb="patch",
            resource=resource,
            namespace=namespace,
            name=name,
            subresource=subresource,
        )
        content = await self._fetch(
            call,
            content=msgspec.json.encode(patch),
            content_type="application/merge-patch+json",
        )
        return self._decode(content, type_, call)

    async def delete(self, resource: Resource, *, name: str, namespace: str | None = None) -> None:
        """Delete an object."""
        await self._fetch(ApiCall(verb="delete", resource=resource, namespace=namespace, name=name))

    async def list_page(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        params: Mapping[str, str | int],
        timeout_seconds: float,
    ) -> bytes:
        """Return a page of a list, undecoded; ``params`` are those of the query."""
        call = ApiCall(verb="list", resource=resource, namespace=namespace)
        return await self._fetch(call, params=params, timeout_seconds=timeout_seconds)

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        *,
        namespace: str | None,
        params: Mapping[str, str | int],
        idle_seconds: float,
    ) -> AsyncGenerator[AsyncIterator[list[bytes]]]:
        """Open a watch; yield an iterator over the events, one line each, in batches as they come.

        A line that is cut off is dropped. The iterator ends when the server ends the watch, and
        raises ``ConnectionFailedError`` if the connection is lost or silent for ``idle_seconds``.
        """
        call = ApiCall(verb="watch", resource=resource, namespace=namespace)
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(self._http_for(call))
            request = self._request(
                http, call, {**params, "watch": "true"}, limit_seconds=_WATCH_OPEN_SECONDS
            )
            with self._failures(call, _WATCH_OPEN_SECONDS):
                async with asyncio.timeout(_WATCH_OPEN_SECONDS):
                    response = await http.send(request, stream=True)
                    stack.push_async_callback(response.aclose)
                    if not response.is_success:
                        await response.aread()
            self._check(call, response)
            batches = self._batches(call, response, idle_seconds)
            yield await stack.enter_async_context(aclosing(batches))

    async def find(self, resource: Resource) -> ServedResource | None:
        """Return the kind as the server has it in that version of its group (discovery).

        Args:
            resource: The kind; its plural is ignored.

        Returns:
            None if the server does not have the kind.
        """
        call = ApiCall(verb="get", resource=resource.group_document, namespace=None)
        try:
            content = await self._fetch(call)
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        for each in self._decode(content, _ApiResourceList, call).resources:
            if each.kind == resource.kind and "/" not in each.name:  # no subresource
                return ServedResource(replace(resource, plural=each.name), each.namespaced)
        return None

    async def server_version(self) -> str:
        """Return the version of the server, such as ``v1.34.1``."""
        call = ApiCall(verb="get", resource=VERSION_DOCUMENT, namespace=None)
        return self._decode(await self._fetch(call), _Version, call).git_version

    async def _fetch(
        self,
        call: ApiCall,
        *,
        params: Mapping[str, str | int] | None = None,
        content: bytes | None = None,
        content_type: str = "application/json",
        timeout_seconds: float | None = None,
    ) -> bytes:
        """Make a call and return the body of its response."""
        limit = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        async with self._http_for(call) as http:
            request = self._request(http, call, params, content, content_type, limit_seconds=limit)
            with self._failures(call, limit):
                async with asyncio.timeout(limit):
                    response = await http.send(request)
        self._check(call, response)
        return response.content

    def _http_for(self, call: ApiCall) -> AbstractAsyncContextManager[httpx2.AsyncClient]:
        relay = self._relay_for(call)
        return self._http.newest() if relay is None else nullcontext(relay)

    def _relay_for(self, call: ApiCall) -> httpx2.AsyncClient | None:
        """Return the client of the relay, if it takes the call."""
        return self._relay if call.verb in _RELAYED else None

    def _request(
        self,
        http: httpx2.AsyncClient,
        call: ApiCall,
        params: Mapping[str, str | int] | None,
        content: bytes | None = None,
        content_type: str = "application/json",
        *,
        limit_seconds: float,
    ) -> httpx2.Request:
        connect_seconds = _connect_seconds(limit_seconds)
        extensions: dict[str, Any] = {"timeout": {"connect": connect_seconds}}
        if self.connection.server_name is not None:
            extensions["sni_hostname"] = self.connection.server_name
        return http.build_request(
            _METHODS[call.verb],
            call.path,
            params=params,
            content=content,
            headers={} if content is None else {"content-type": content_type},
            extensions=extensions,
        )

    async def _batches(
        self, call: ApiCall, response: httpx2.Response, idle_seconds: float
    ) -> AsyncGenerator[list[bytes]]:
        rest = b""
        async with aclosing(response.aiter_raw()) as chunks:
            while True:
                with self._failures(call, idle_seconds):
                    async with asyncio.timeout(idle_seconds):
                        chunk = await anext(chunks, None)
                if chunk is None:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    yield lines

    @contextmanager
    def _failures(self, call: ApiCall, timeout_seconds: float) -> Iterator[None]:
        """Convert the exceptions of a call into errors of this package."""
        relay = self._relay_for(call)
        server = self.connection.server if relay is None else str(relay.base_url)
        try:
            yield
        except httpx2.ConnectTimeout as error:
            wait = _connect_seconds(timeout_seconds)
            text = f"cannot connect to {server}: no response for {wait:g} s"
            raise UnreachableError(text) from error
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            raise UnreachableError(f"cannot connect to {server}: {_reason(error)}") from error
        except TimeoutError as error:
            text = f"{server} sent nothing for {timeout_seconds:g} s"
            raise ConnectionFailedError(text) from error
        except (httpx2.HTTPError, OSError) as error:
            text = f"connection to {server} lost: {_reason(error)}"
            raise ConnectionFailedError(text) from error
        # lightkube raises these if a plugin for credentials fails or prints something else.
        except (ConfigError, KeyError, ValueError) as error:
            raise UnreachableError(f"no credentials for {server}: {_reason(error)}") from error

    def _check(self, call: ApiCall, response: httpx2.Response) -> None:
        """Raise the error that ``response`` reports, if it reports one."""
        if response.is_success:
            return
        if self._relay_for(call) is not None:
            raise restored(response.content, call)
        raise refusal(call, response.status_code, response.content, response.headers)

    def _decode(self, body: bytes, type_: type[_T], call: ApiCall) -> _T:
        try:
            return msgspec.json.decode(body, type=type_)
        except msgspec.DecodeError as error:
            text = f"unexpected response of {self.connection.server} to {call.path}: {error}"
            raise ConnectionFailedError(text) from error


def _connect_seconds(limit_seconds: float) -> float:
    """Return the limit of the TCP connection, and again of the TLS handshake, of a call."""
    # A handshake that the call's own limit cancels would leave its socket to the garbage collector.
    return min(_CONNECT_SECONDS, limit_seconds / 2)


def _document(resource: Resource, body: msgspec.Struct) -> bytes:
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return msgspec.json.encode(head | msgspec.to_builtins(body))


def _reason(error: BaseException) -> str:
    """Return the text of the root cause: anyio's own says only that all attempts failed."""
    # A CancelledError is the context of calls that are made at the end of a task, not their cause.
    while isinstance(cause := error.__cause__ or error.__context__, Exception):
        error = cause
    while isinstance(error, BaseExceptionGroup):  # one for each address of the host
        error = error.exceptions[0]
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        number = error.errno or 0
        if number in errorcode:  # codes of getaddrinfo are not
            return os.strerror(number).lower()  # asyncio's own text has just the address
    return str(error) or type(error).__name__
