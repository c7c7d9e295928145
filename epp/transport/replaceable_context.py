"""A TLS context that can be replaced while a server listens with it."""

import ssl
from collections.abc import Callable
from typing import Self

HandshakeFailed = Callable[[ssl.SSLError], None]


class ReplaceableContext(ssl.SSLContext):
    """Creates each connection's TLS object with the context set last.

    asyncio and uvloop take a context when they begin to listen, and call its ``wrap_bio`` once per
    connection, which this class redirects. Loading a new certificate into the context in use is not
    an alternative: for a moment it would have the new certificate with the old key, and its session
    tickets would admit clients that only the previous authorities had admitted.
    """

    _current: ssl.SSLContext
    _object_class: type[ssl.SSLObject]

    def __new__(cls, current: ssl.SSLContext, failed: HandshakeFailed) -> Self:
        """Begin with ``current``; call ``failed`` for each failed handshake."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._object_class = _reporting(failed)
        made.replace(current)
        return made

    def replace(self, context: ssl.SSLContext) -> None:
        """Use ``context`` for new connections; thread-safe."""
        context.sslobject_class = self._object_class
        self._current = context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self._current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _reporting(failed: HandshakeFailed) -> type[ssl.SSLObject]:
    class ReportingSslObject(ssl.SSLObject):
        # asyncio does not report why a handshake has failed.
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                failed(error)
                raise

    return ReportingSslObject
