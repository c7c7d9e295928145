"""A Redis for a test or a tool: Debian's redis-server on a free port, without persistence."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.harness.ports import free_ports

START_SECONDS = 20.0


class RedisServer:
    """A redis-server that can be killed, frozen and started again on the same port.

    Args:
        folder: Its working directory.
        options: Further options of redis-server, each without its dashes.
        is_plain: Whether it listens without TLS on :attr:`port`.
    """

    def __init__(self, folder: Path, options: Sequence[str] = (), *, is_plain: bool = True) -> None:
        (self.port,) = free_ports(1)
        self._folder = folder
        self._is_plain = is_plain
        self._options = options
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the server, and wait until it listens.

        Raises:
            RuntimeError: It is not installed, or has ended.
        """
        program = shutil.which("redis-server")
        if program is None:
            raise RuntimeError("redis-server is missing: apt-get install redis-server")
        port = f"port {self.port}" if self._is_plain else f"port 0 --tls-port {self.port}"
        arguments = [port, "bind 127.0.0.1", "save", "appendonly no", *self._options]
        words = [word for each in arguments for word in f"--{each}".split()]
        words[words.index("--save") + 1 : words.index("--save") + 1] = [""]
        self._process = await asyncio.create_subprocess_exec(
            program, *words, cwd=self._folder, stdout=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(START_SECONDS):
            while not await self._listens():
                if self._process.returncode is not None:
                    raise RuntimeError(f"redis-server ended with {self._process.returncode}")
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def freeze(self) -> None:
        """Suspend the server; its connections stay open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume a frozen server."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.close()
        await writer.wait_closed()
        return True


@asynccontextmanager
async def redis_server(*options: str, is_plain: bool = True) -> AsyncIterator[RedisServer]:
    """Run a Redis.

    Args:
        options: Further options of redis-server, each without its dashes.
        is_plain: Whether it listens without TLS.
    """
    with TemporaryDirectory(prefix="epp-redis-") as folder:
        server = RedisServer(Path(folder), options, is_plain=is_plain)
        await server.start()
        try:
            yield server
        finally:
            await server.kill()
