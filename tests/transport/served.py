"""Helpers for tests of a server on real sockets."""

from epp.transport.protocol import ConnectionProtocol
from tools.harness.raw_client import Idle, Serving, call, connected

KIB = 1 << 10


async def assert_serves(port: int) -> None:
    """Assert that a new connection is served."""
    async with connected(port) as client:
        client.send(call(1, b"hello"))
        response = await client.response(1)
        assert (response.messages, response.status) == ([b"hello"], 0)


def only_connection(served: Serving) -> ConnectionProtocol:
    (protocol,) = served.server.connections
    return protocol


class Flooding(Idle):
    """Sends numbered messages while the stream is writable, 40 MB in all."""

    sent = 0

    def message(self, data: bytes) -> None:
        self.writable()

    def writable(self) -> None:
        self.writables += 1
        while self.stream.is_writable and self.sent < 400:
            self.stream.send(b"%06d" % self.sent + bytes(100 * KIB))
            self.sent += 1
        if self.sent == 400:
            self.stream.finish()


async def assert_served_beside(served: Serving) -> None:
    """Make a round trip on another connection, so that everything sent before has been handled."""
    async with connected(served.port) as other:
        await other.round_trip()
