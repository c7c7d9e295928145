"""A server process with the transport alone; it reports its counters and live objects.

``python -m tools.soak.server --ready-file FILE``. It answers ext_proc messages with prebuilt bytes;
the gRPC method names the mode.
"""

import argparse
import asyncio
import gc
import json
from collections.abc import Mapping
from itertools import repeat
from logging import CRITICAL
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from epp.lab.envoy import Mode
from epp.transport import Http2Server
from epp.transport.grpc.stream import GrpcStream
from epp.transport.http2 import Http2Stream
from epp.transport.interface import Stream
from tools.bench.bare_server import Replier, replies
from tools.bench.processes import announce

STATISTICS = "/test.Server/Statistics"
"""Method that answers with a JSON document of everything that could leak."""
GIVE = "/test.Server/Give"
"""Method that answers a message of 4 octets, a number, with that many bytes."""
SILENT = "/test.Server/Silent"
"""Method that accepts all messages and answers none."""


def method(mode: Mode) -> str:
    """Return the method whose replies are those of ``mode``."""
    return f"/test.ExtProc/{mode.name.title().replace('_', '')}"


class Handler:
    """One call, answered message by message."""

    __slots__ = ("_reply", "_stream")

    def __init__(self, stream: Stream, reply: Replier) -> None:
        self._stream = stream
        self._reply = reply

    def message(self, data: bytes) -> None:
        if given := self._reply(data):
            self._stream.send(given)

    def half_closed(self) -> None:
        self._stream.finish()

    def reset(self) -> None:
        pass

    def writable(self) -> None:
        pass


class SilentHandler(Handler):
    """One call that is never answered."""

    __slots__ = ()

    def message(self, data: bytes) -> None:
        pass

    def half_closed(self) -> None:
        pass


def statistics(server: Http2Server) -> dict[str, Any]:
    """Return the numbers of all objects that could leak, and the counters."""
    connections = [each.connection for each in server.connections]
    window = server.settings.connection.connection_window_bytes
    gc.collect()
    live = [type(each) for each in gc.get_objects()]
    cache = server.cache
    return {
        "connections": len(connections),
        "open_streams": server.open_streams,
        "waiting_bytes": sum(each.sender.waiting_bytes for each in connections),
        "ready_streams": sum(each.sender.ready_streams for each in connections),
        "buffered_bytes": sum(each.budget.used_bytes for each in connections),
        "missing_credit_bytes": sum(
            window - each._receiver._window - each._receiver._to_acknowledge for each in connections
        ),
        "live_http2_streams": live.count(Http2Stream),
        "live_grpc_streams": live.count(GrpcStream),
        "live_handlers": live.count(Handler) + live.count(SilentHandler),
        "live_objects": len(live),
        "cache": {
            "bytes": cache.bytes,
            "entries": len(cache.entries),
            "hits": cache.hits,
            "misses": cache.misses,
        },
        "counters": msgspec.to_builtins(server.counters),
    }


async def serve(ready_file: Path) -> None:
    """Serve until the process ends."""

    def handlers(reply: Replier) -> Any:
        def opened(stream: Stream, _: Mapping[str, str]) -> Handler:
            return Handler(stream, reply)

        return opened

    def silent(stream: Stream, _: Mapping[str, str]) -> Handler:
        return SilentHandler(stream, give)

    def give(message: bytes) -> bytes:
        return bytes(int.from_bytes(message, "big"))

    def report(_: bytes) -> bytes:
        return json.dumps(statistics(server)).encode()

    server = Http2Server(
        {
            STATISTICS: handlers(report),
            GIVE: handlers(give),
            SILENT: silent,
            **{method(mode): handlers(replies(mode, repeat("10.0.0.1:8000"))) for mode in Mode},
        },
        host="127.0.0.1",
    )
    announce(ready_file, {"grpc": await server.start()})
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready-file", type=Path, required=True)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    uvloop.run(serve(parser.parse_args().ready_file))
