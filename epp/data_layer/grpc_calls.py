"""Unary gRPC client with serialized messages, for plugins that call another process.

Bounded like the HTTP calls (:mod:`.http_calls`). grpc is imported by the first call: the import
takes a tenth of a second, and few configurations need it.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from epp.data_layer.errors import PageTooLargeError, ScrapeConnectError, ScrapeProtocolError
from epp.data_layer.http_calls import Slots

if TYPE_CHECKING:
    import grpc.aio

_MAX_DETAILS: Final = 200
_OWN_DETAILS: Final = ("failed to connect", "Received message larger than max")
"""Prefixes of error details that the local gRPC library writes. Details of a server may quote a
prompt."""
_BACKOFF: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    # The default of two minutes would leave a recovered server unused for that long.
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class GrpcCalls:
    """A client for one server, without TLS.

    Args:
        target: ``unix:PATH`` or ``host:port``.
        max_calls: Concurrent calls.
        max_waiting: Calls that may wait for a slot; more are refused.
        max_response_bytes: Longer responses are refused.
    """

    def __init__(
        self, target: str, *, max_calls: int, max_waiting: int, max_response_bytes: int
    ) -> None:
        self._target = target
        self._slots = Slots(target, max_calls, max_waiting)
        self._max_response_bytes = max_response_bytes
        self._channel: grpc.aio.Channel | None = None
        self._closing: asyncio.Task[None] | None = None

    async def call(self, method: str, message: bytes) -> bytes:
        """Return the response to ``message``; ``method`` is ``/package.Service/Method``.

        The caller sets the time limit.

        Raises:
            ScrapeError: The server is unreachable, returned an error, or the response is too long.
            CallerBusyError: Too many calls are waiting.
        """
        import grpc  # noqa: PLC0415 - late, see above

        async with self._slots:
            try:
                response: bytes = await self._open().unary_unary(method)(message)
            except grpc.aio.AioRpcError as error:
                text = f"{self._target}: {error.code().name}{_own_details(error)}"
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise ScrapeConnectError(text) from None
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise PageTooLargeError(text) from None
                raise ScrapeProtocolError(text) from None
            return response

    def close(self) -> None:
        """Close the connection; calls in flight fail. Idempotent."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._closing = asyncio.get_running_loop().create_task(
                channel.close(), name=f"close the client of {self._target}"
            )

    async def closed(self) -> None:
        """Wait until :meth:`close` has closed the connection."""
        if self._closing is not None:
            await self._closing

    def _open(self) -> "grpc.aio.Channel":
        if self._channel is None:
            import grpc.aio  # noqa: PLC0415 - late, see above

            self._channel = grpc.aio.insecure_channel(
                self._target,
                options=(
                    ("grpc.max_receive_message_length", self._max_response_bytes),
                    ("grpc.max_send_message_length", -1),
                    ("grpc.enable_http_proxy", 0),
                    *_BACKOFF,
                ),
            )
        return self._channel


def _own_details(error: "grpc.aio.AioRpcError") -> str:
    details = (error.details() or "")[:_MAX_DETAILS]
    return f": {details}" if details.startswith(_OWN_DETAILS) else ""
