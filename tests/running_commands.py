"""Runs shell commands of documents, to their end or in the background."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

ENVIRONMENT: Final = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "160",
}
"""With the commands of the environment in which the tests run, on a wide terminal."""


async def printed_by(
    commands: str, folder: Path, environment: Mapping[str, str] = ENVIRONMENT
) -> str:
    """Run commands with bash, and return what they print; each must succeed."""
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", f"set -e -o pipefail\n{commands}"),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await shell.communicate()
    assert shell.returncode == 0, (commands, out, err)
    return out.decode()


@asynccontextmanager
async def started(command: str, says: str, folder: Path) -> AsyncIterator["Running"]:
    """Run a command that does not end; yield it once its output has the text."""
    process = await asyncio.create_subprocess_shell(
        f"exec {command}",
        cwd=folder,
        env=ENVIRONMENT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    running = Running(process)
    try:
        await running.until(says)
        yield running
    finally:
        await running.end()


class Running:
    """A process, and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: list[str] = []
        self._has_ended = False
        self._more = asyncio.Condition()
        self._reader = asyncio.create_task(self._read(), name="output of a command")

    async def until(self, *texts: str) -> str:
        """Return the first line with all the texts, when it has come."""
        async with self._more:
            await self._more.wait_for(lambda: self._line_with(texts) is not None or self._has_ended)
        line = self._line_with(texts)
        assert line is not None, (texts, self._lines)
        return line

    async def end(self) -> None:
        """Stop it."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        await self._process.wait()
        await self._reader

    def _line_with(self, texts: Sequence[str]) -> str | None:
        return next((each for each in self._lines if all(text in each for text in texts)), None)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._more:
                self._lines.append(line.decode())
                self._more.notify_all()
        async with self._more:
            self._has_ended = True
            self._more.notify_all()
