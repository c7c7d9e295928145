"""Benchmark processes; each writes its ports to a file when it is ready."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import REPOSITORY

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """A process that is ready."""

    pid: int
    ready: dict[str, Any]
    """Content of the ready file."""


@contextlib.asynccontextmanager
async def python(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Running]:
    """Run Python with ``arguments`` and ``--ready-file FILE`` until the block ends.

    Args:
        arguments: Of the interpreter.
        environment: Variables in addition to those of this process.

    Raises:
        RuntimeError: It ended, or was not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as folder:
        ready_file = Path(folder) / "ready"
        command = (*map(str, arguments), "--ready-file", str(ready_file))
        async with process(*command, environment=environment) as started:
            async with asyncio.timeout(START_SECONDS):
                while not ready_file.exists():
                    if started.returncode is not None:
                        raise RuntimeError(f"{arguments} ended with {started.returncode}")
                    await asyncio.sleep(0.02)
            yield Running(started.pid, json.loads(ready_file.read_text()))


@contextlib.asynccontextmanager
async def process(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    stdout: int = asyncio.subprocess.DEVNULL,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run Python with ``arguments`` until the block ends.

    Args:
        arguments: Of the interpreter.
        environment: Variables in addition to those of this process.
        stdout: Where its output goes, as of :mod:`subprocess`.
    """
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=stdout,
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        try:
            async with asyncio.timeout(5):
                await started.wait()
        except TimeoutError:
            started.kill()
            await started.wait()


def announce(ready_file: Path, document: dict[str, Any]) -> None:
    """Write a ready file, whole or not at all."""
    partial = ready_file.with_suffix(".partial")
    partial.write_text(json.dumps(document))
    partial.replace(ready_file)


def epp(
    endpoints: Sequence[str], *options: str, sampled: Path | None = None
) -> contextlib.AbstractAsyncContextManager[Running]:
    """Run ``epp serve`` with the default configuration; its ready record has the port ``grpc``."""
    ports = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0")
    common = (
        *("--secure-serving=false", "--host", "127.0.0.1"),
        *("--drain-delay-seconds", "0", "--drain-timeout", "1s"),
    )
    arguments = ("serve", *common, *ports, *_addresses(endpoints), *options)
    return _module(sampled, "epp", *arguments)


def upstream(ports: int) -> contextlib.AbstractAsyncContextManager[Running]:
    """Run the model servers; their ready record has ``endpoints``."""
    return _module(None, "tools.bench.upstream", "--ports", str(ports))


def bare(
    mode: str, endpoints: Sequence[str], *options: str, sampled: Path | None = None
) -> contextlib.AbstractAsyncContextManager[Running]:
    """Run a bare ext_proc server; its ready record has the port ``grpc``."""
    arguments = ("--mode", mode, *_addresses(endpoints), *options)
    return _module(sampled, "tools.bench.bare_server", *arguments)


def _module(
    sampled: Path | None, module: str, *arguments: str
) -> contextlib.AbstractAsyncContextManager[Running]:
    """Run a module; :mod:`tools.bench.sampled` writes samples of its stacks to ``sampled``."""
    if sampled is None:
        return python("-m", module, *arguments)
    return python("-m", "tools.bench.sampled", sampled, module, *arguments)


def _addresses(endpoints: Sequence[str]) -> list[str]:
    return [text for endpoint in endpoints for text in ("--endpoint", endpoint)]
