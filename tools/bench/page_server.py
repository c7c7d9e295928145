"""Many idle model servers in one process, each healthy and with a page of metrics.

``GET /pages`` returns how many pages all of them have sent.

``python -m tools.bench.page_server COUNT --ready-file FILE``
"""

import argparse
import asyncio
from pathlib import Path
from time import process_time
from typing import cast

import uvloop

from tools.bench.processes import announce

PAGE_BYTES = 54_000
"""As long as the page of a vLLM server."""

_LABELS = '{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
_GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_PROCESS = "python_gc_collections", "process_resident_memory_bytes", "process_cpu_seconds"
_CPU_SECONDS = "%015.6f"
_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def page() -> bytes:
    """Return a page like that of an idle vLLM server: mostly buckets of histograms.

    It begins with values of the process, as those of prometheus-client do. The CPU time is to be
    filled in: it changes from page to page, and nothing else does.
    """
    lines = [f"{name}_total 17.0" for name in _PROCESS[:-1]]
    lines.append(f"{_PROCESS[-1]}_total {_CPU_SECONDS}")
    for name in _GAUGES:
        lines += [f"# HELP vllm:{name} A gauge.", f"# TYPE vllm:{name} gauge"]
        lines.append(f"vllm:{name}{_LABELS}}} 0.0")
    length = sum(len(line) + 1 for line in lines)
    number = 0
    while length < PAGE_BYTES:
        line = f'vllm:time_{number // 20}_seconds_bucket{_LABELS},le="{number % 20}.0"}} 17.0'
        lines.append(line)
        length += len(line) + 1
        number += 1
    return ("\n".join(lines) + "\n").encode()


class _Server(asyncio.Protocol):
    """A connection that answers one GET after the other."""

    pages = 0
    """Pages sent by all of them."""

    def __init__(self, response: bytes) -> None:
        self._response = response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /health"):
            self._transport.write(_HEALTHY)
        elif data.startswith(b"GET /pages"):
            count = b"%d" % self.pages
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(count))
            self._transport.write(count)
        else:
            _Server.pages += 1
            self._transport.write(self._response % process_time())


async def main(count: int, ready_file: Path) -> None:
    """Serve on one port of ``count`` loopback addresses until terminated."""
    body = page()
    length = len(body % 0.0)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n"
    response = head.encode() + body
    loop = asyncio.get_running_loop()
    hosts = [f"127.2.{number // 250}.{number % 250 + 1}" for number in range(count)]
    port = 0
    for host in hosts:
        server = await loop.create_server(lambda: _Server(response), host, port)
        port = server.sockets[0].getsockname()[1]
    announce(ready_file, {"hosts": hosts, "port": port})
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--ready-file", type=Path, required=True)
    given = parser.parse_args()
    uvloop.run(main(given.count, given.ready_file))
