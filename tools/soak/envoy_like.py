"""One connection used as Envoy uses it: requests end with a reset, and clients disconnect."""

from epp.lab.envoy import Mode
from tools.soak import frames, server
from tools.soak.connection import RawConnection
from tools.soak.requests import make_lean_chunk

AT_ONCE = 100


async def normal_requests(connection: RawConnection, count: int) -> None:
    """Make ``count`` requests; RST_STREAM with INTERNAL_ERROR follows each reply.

    Raises:
        Lost: The connection ended.
    """
    chunk = make_lean_chunk(AT_ONCE, server.method(Mode.LEAN), frames.completion("Hello " * 80))
    for _ in range(count // AT_ONCE):
        chunk.number(connection.take_stream_ids(AT_ONCE))
        expected = connection.answered + connection.failed.total() + AT_ONCE
        await connection.send(bytes(chunk.data))
        await connection.until_ended(expected)
        await connection.send(bytes(chunk.resets))


async def aborts_at_once(connection: RawConnection, count: int) -> None:
    """Open ``count`` streams, send a message on each, and reset them all before any reply.

    Raises:
        Lost: The connection ended.
    """
    first = connection.take_stream_ids(count)
    ids = range(first, first + 2 * count, 2)
    content = frames.message(b"to be aborted")
    await connection.send(
        b"".join(frames.call(each, server.SILENT) + frames.data(each, content) for each in ids)
    )
    await connection.ping()
    await connection.send(b"".join(map(frames.reset, ids)))
    await connection.ping()
