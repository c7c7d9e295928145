"""`epp up` as a process, with the record of its fleet."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import REPOSITORY

MODEL = "lab"
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0
_RECORD_SECONDS = 10.0
"""The fleet writes an ended request to its record within a second."""
_READY = re.compile(r"gateway ready: Envoy in \S+ mode on (\S+)")


class ProgramError(RuntimeError):
    """A program ended or did not become ready; the message says which, and where its log is."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway."""

    url: str
    record: Path
    """JSON lines of the requests that have ended."""

    async def rows_after(self, known: int, count: int) -> list[dict[str, Any]]:
        """Return the next lines of the record, as soon as the fleet has written them.

        Args:
            known: Lines read before.
            count: Lines to wait for.

        Raises:
            ProgramError: There are fewer within 10 s, or a request did not complete.
        """
        deadline = asyncio.get_running_loop().time() + _RECORD_SECONDS
        while True:
            # The last line may be incomplete.
            lines = (await asyncio.to_thread(self.record.read_text)).split("\n")[:-1][known:]
            if len(lines) >= count:
                break
            if asyncio.get_running_loop().time() > deadline:
                raise ProgramError(
                    f"{self.record} has {len(lines)} of {count} requests: some never reached a"
                    " server"
                )
            await asyncio.sleep(0.1)
        rows = [json.loads(line) for line in lines]
        if bad := [row for row in rows if row["outcome"] != "completed"]:
            raise ProgramError(f"{self.record}: {len(bad)} requests did not complete: {bad[0]}")
        return rows


@asynccontextmanager
async def running(servers: int, preset: str, folder: Path) -> AsyncIterator[Gateway]:
    """Run a gateway until the block ends.

    Args:
        servers: Number of fake servers.
        preset: Their engine.
        folder: For the record and the log.

    Raises:
        ProgramError: It ended, or was not ready within two minutes.
    """
    record, log = folder / "fleet.jsonl", folder / "up.log"
    ports = ("--port=0", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")
    fleet = (f"--fleet-arg=--preset={preset}", f"--fleet-arg=--record={record}")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "epp", "up", *ports),
            *(f"--fleet-size={servers}", f"--model={MODEL}", *fleet),
            stdout=output,
            stderr=output,
            cwd=REPOSITORY,
        )
    try:
        yield Gateway(f"http://{await _address(process, log)}", record)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:
        if match := _READY.search(await asyncio.to_thread(log.read_text)):
            return match[1]
        await asyncio.sleep(0.1)
    raise ProgramError(f"epp up was not ready; its log is {log}")


async def run(command: Sequence[str], log: Path, environment: dict[str, str] | None = None) -> None:
    """Run a program to its end.

    Args:
        command: Program and arguments.
        log: File for its output.
        environment: All its environment variables; None for those of this process.

    Raises:
        ProgramError: It failed, or does not exist.
    """
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=output, stderr=output, cwd=log.parent, env=environment
            )
        except OSError as error:
            raise ProgramError(f"cannot run {command[0]}: {error.strerror}") from None
        try:
            status = await process.wait()
        except BaseException:
            process.kill()
            raise
    if status:
        raise ProgramError(f"{command[0]} ended with status {status}; its output is {log}")
