"""Sends requests over persistent HTTP/1.1 connections."""

import ssl
from collections.abc import Iterable

from epp.lab.load.client import ConnectionPool, ResponseReceiver
from epp.lab.load.plan import LoadPlan


class Http1Transport:
    """A pool of connections to the plan's address, with the head that all requests share."""

    def __init__(self, plan: LoadPlan, headers: dict[str, str], tls: ssl.SSLContext | None) -> None:
        self._pool = ConnectionPool(plan.address.hostname or "", plan.port, tls=tls)
        lines = [
            f"POST {plan.path} HTTP/1.1",
            f"host: {plan.address.netloc}",
            *(f"{name}: {value}" for name, value in headers.items()),
            "",
        ]
        self._head = "\r\n".join(lines).encode("ascii")

    async def exchange(
        self, headers: Iterable[tuple[str, str]], body: bytes, receiver: ResponseReceiver
    ) -> None:
        """Send a request with these headers in addition; pass the response to `receiver`.

        Raises:
            RequestFailedError: There is no complete response.
        """
        own = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = b"%s%scontent-length: %d\r\n\r\n" % (self._head, own.encode("latin-1"), len(body))
        connection = await self._pool.acquire()
        try:
            await connection.exchange(head + body, receiver)
        finally:
            self._pool.release(connection)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
