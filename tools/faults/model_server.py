"""One fake model server as a process, so that it can be killed and stopped.

``python -m tools.faults.model_server --port PORT --index N --ready-file FILE``. Each line on
standard input is a JSON object of fields of :class:`~epp.lab.fleet.Faults` to set.
"""

import argparse
import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import uvloop

from epp.lab.fleet import EngineConfig, FakeServer, FleetConfig
from tools.bench.processes import announce

ENGINE = EngineConfig(max_num_seqs=64, num_blocks=20_000)


async def main(port: int, index: int, ready_file: Path) -> None:
    ports = (*[0] * index, port)
    config = FleetConfig(endpoints=len(ports), ports=ports, engine=ENGINE)
    server = FakeServer(config, index)
    await server.start()
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    announce(ready_file, {"name": server.name, "port": server.port})
    async for line in commands:
        await server.inject(replace(server.faults, **json.loads(line)))
    await server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    given = parser.parse_args()
    uvloop.run(main(given.port, given.index, given.ready_file))
