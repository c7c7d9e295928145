"""A TLS context that can be replaced while a server listens with it."""

import ssl
from collections.abc import Callable
from typing import Self

HandshakeFailed = Callable[[ssl.SSLError], None]


class ReplaceableContext(ssl.SSLContext):
    """Makes every connection with the context that was set last.

    asyncio and uvloop take a context when they begin to listen, and ask it for one object per
    connection; that is where another one steps in. Loading a certificate into the context in use
    would do, too, but for a moment it would have the new certificate and the old key, and its
    session tickets would let clients in that a former list of authorities had let in.
    """

    _current: ssl.SSLContext
    _watched: type[ssl.SSLObject]

    def __new__(cls, current: ssl.SSLContext, failed: HandshakeFailed) -> Self:
        """Begin with ``current``; ``failed`` is told of handshakes that came to nothing."""
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._watched = _watched(failed)
        made.replace(current)
        return made

    def replace(self, context: ssl.SSLContext) -> None:
        """Make the connections to come with ``context``; callable from any thread."""
        context.sslobject_class = self._watched
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


def _watched(failed: HandshakeFailed) -> type[ssl.SSLObject]:
    class Watched(ssl.SSLObject):
        # asyncio keeps the reason of a failed handshake to itself.
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                failed(error)
                raise

    return Watched
