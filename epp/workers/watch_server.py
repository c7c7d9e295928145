"""The supervisor's part in discovery: it watches the Kubernetes API for all workers."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epp.observability import HttpLimits
from epp.observability.http_server import HttpServer
from epp.settings import ServeSettings
from epp.sockets import listen_on

if TYPE_CHECKING:
    from epp.kubernetes.watch_relay import WatchRelay

_CONNECTIONS_PER_WORKER: Final = 64
"""A watch takes one connection; there is one watch for each kind of object."""
_UNREAD_BYTES: Final = 1 << 30
"""Limit of unread responses: all workers may list all objects at the same time."""


@asynccontextmanager
async def relayed_watches(settings: ServeSettings, path: Path) -> AsyncIterator[bool]:
    """Answer lists and watches of the workers within the block, if they make any; yield whether.

    Args:
        settings: Settings of the command line.
        path: The socket file, see :func:`serve_watches`.
    """
    server = None
    if settings.follows_cluster:
        server = await asyncio.to_thread(_serve, settings.workers, path)
    try:
        yield server is not None
    finally:
        if server is not None:
            await asyncio.to_thread(server.close)


def _serve(workers: int, path: Path) -> HttpServer | None:
    try:  # these modules need an extra
        from epp.kubernetes.shared_client import SharedClient  # noqa: PLC0415
        from epp.kubernetes.watch_relay import WatchRelay  # noqa: PLC0415
    except ImportError:
        return None  # worker 0 reports the missing extra, and the start fails
    return serve_watches(WatchRelay(SharedClient()), path, workers=workers)


def serve_watches(relay: "WatchRelay", path: Path, *, workers: int) -> HttpServer:
    """Serve a relay on a socket file, in a thread of its own, until the server is closed; blocks.

    Args:
        relay: The relay that answers.
        path: The socket file; its directory must be private, as clients need no credentials.
        workers: Number of client processes.
    """
    return HttpServer(
        "watch relay",
        listen_on([(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", str(path))]),
        relay.respond,
        HttpLimits(
            max_connections=workers * _CONNECTIONS_PER_WORKER, max_unread_bytes=_UNREAD_BYTES
        ),
        closed=relay.close,
    )
