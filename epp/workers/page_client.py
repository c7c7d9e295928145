"""Fetch pages from a worker over its Unix socket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

from epp.observability import Response

if TYPE_CHECKING:
    import httpx

_TIMEOUT_SECONDS: Final = 5.0
_PASSED_ON: Final = frozenset(
    {"cache-control", "www-authenticate", "retry-after", "x-accel-buffering", "allow"}
    | {"x-content-type-options", "content-security-policy", "referrer-policy"}
)
"""Headers of responses that clients get, too."""


_AS_THEY_ARE: Final = "!#$%&'()*+,/:;=?@[]"
"""Characters of a target that are not escaped; those that are no ASCII are."""


class InvalidTargetError(Exception):
    """A client has asked for something that is not a path."""


class WorkerAwayError(Exception):
    """The worker does not answer: it has ended, or is starting, or hangs."""


@asynccontextmanager
async def _response(
    socket: Path, method: str, target: bytes, headers: Mapping[str, str]
) -> AsyncIterator["httpx.Response"]:
    # Imported here: it takes a tenth of the start of `epp serve`; only a supervisor needs it.
    import httpx  # noqa: PLC0415

    try:
        url = httpx.URL("http://worker", raw_path=quote_from_bytes(target, _AS_THEY_ARE).encode())
    except httpx.InvalidURL as error:
        raise InvalidTargetError(str(error)) from error
    # Not a client: it would add headers, and follow redirects and proxies of the environment.
    encoded = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    request = httpx.Request(method, url, headers=encoded)
    try:
        async with httpx.AsyncHTTPTransport(verify=False, uds=str(socket)) as transport:
            response = await transport.handle_async_request(request)
            try:
                yield response
            finally:
                await response.aclose()
    except httpx.ConnectError as error:
        raise WorkerAwayError("the worker has ended, or is starting") from error
    except httpx.TransportError as error:
        raise WorkerAwayError("the worker has closed the connection") from error


async def fetch(
    socket: Path,
    target: bytes,
    *,
    method: str = "GET",
    headers: Mapping[str, str],
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> Response:
    """Return the response of the worker that listens on ``socket``.

    A feed of events is returned as a stream, which uses another connection.

    Args:
        socket: The worker's socket file.
        target: Path and query of the request.
        method: Of the request.
        headers: Of the request, by name.
        timeout_seconds: For the whole response.

    Raises:
        InvalidTargetError: ``target`` is not a path.
        WorkerAwayError: The worker does not answer.
    """
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            _response(socket, method, target, headers) as got,
        ):
            kind = got.headers.get("content-type", "application/octet-stream")
            passed = tuple((k, v) for k, v in got.headers.items() if k in _PASSED_ON)
            made = Response(HTTPStatus(got.status_code), kind, b"", passed)
            if kind == "text/event-stream":
                return made._replace(stream=lambda: _stream(socket, target, headers))
            return made._replace(body=b"".join([each async for each in got.aiter_raw()]))
    except TimeoutError as error:
        raise WorkerAwayError(f"the worker does not answer within {timeout_seconds:g} s") from error


async def _stream(
    socket: Path, target: bytes, headers: Mapping[str, str]
) -> AsyncGenerator[bytes, None]:
    async with _response(socket, "GET", target, headers) as got:
        async for chunk in got.aiter_raw():
            yield chunk
