"""Run an Envoy process: start it, wait until it is ready, read its counters, stop it.

Envoy writes the address of its admin endpoint to a file in a temporary folder, so the ports in the
bootstrap may be 0, and several Envoys can run at the same time.
"""

import asyncio
import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from epp.lab.envoy.binary import find_envoy, shortened, validate
from epp.lab.envoy.errors import EnvoyAdminError, EnvoyStartError
from epp.lab.envoy.names import LISTENER

__all__ = ["EnvoyProcess", "find_envoy", "validate"]

LOG_BYTES = 256 * 1024
"""Size of the kept end of the log; a message about an invalid bootstrap contains all of it."""

LOG_TAIL_LINES = 20

READY_POLL_SECONDS = (0.01, 0.2)
"""First and longest pause between readiness checks; each pause is twice the previous one."""

ADMIN_TIMEOUT_SECONDS = 5.0


class EnvoyProcess:
    """An Envoy process as an async context manager: ready on entry, stopped on exit."""

    def __init__(
        self,
        config_text: str,
        *,
        concurrency: int = 1,
        log_level: str = "warn",
        binary: Path | None = None,
        start_timeout_seconds: float = 15.0,
        stop_timeout_seconds: float = 5.0,
    ) -> None:
        self._config_text = config_text
        self._concurrency = concurrency
        self._log_level = log_level
        self._binary = binary
        self._start_timeout_seconds = start_timeout_seconds
        self._stop_timeout_seconds = stop_timeout_seconds
        self._log = bytearray()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._admin: httpx.AsyncClient | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start Envoy and wait until it is ready.

        Raises:
            EnvoyNotFoundError: There is no binary.
            EnvoyStartError: It exited (a port is in use, the bootstrap is invalid), or was not
                ready in time.
        """
        async with contextlib.AsyncExitStack() as stack:
            folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="epp-envoy-"))
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, folder)
            await self._start(folder, stack)
            try:
                async with asyncio.timeout(self._start_timeout_seconds):
                    await self._until_ready(folder / "admin", stack)
            except TimeoutError as error:
                raise EnvoyStartError(
                    f"envoy is not ready after {self._start_timeout_seconds:g} s:\n{self.log_tail}"
                ) from error
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def returncode(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._running().returncode

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running().pid

    @property
    def admin_url(self) -> str:
        """Base URL of the admin endpoint, `http://ip:port`."""
        return str(self._admin_client().base_url).rstrip("/")

    @property
    def log_tail(self) -> str:
        """The last 20 lines of Envoy's log; long lines are truncated."""
        lines = self._log.decode(errors="replace").strip().splitlines()
        return "\n".join(map(shortened, lines[-LOG_TAIL_LINES:]))

    async def wait(self) -> int:
        """Wait until Envoy exits, and return its exit status."""
        return await self._running().wait()

    async def stats(self, prefix: str) -> dict[str, int]:
        """Return the counters and gauges whose names begin with `prefix`.

        Raises:
            EnvoyAdminError: The admin endpoint did not respond.
        """
        response = await self._get("/stats", format="json", filter="^" + re.escape(prefix))
        return {
            each["name"]: each["value"]
            for each in response["stats"]
            if isinstance(each.get("value"), int)
        }

    async def listener_address(self, name: str = LISTENER) -> tuple[str, int]:
        """Return the host and the port to which a listener is bound.

        Raises:
            EnvoyAdminError: The admin endpoint did not respond, or there is no such listener.
        """
        response = await self._get("/listeners", format="json")
        for each in response.get("listener_statuses", ()):
            if each["name"] == name:
                bound = each["local_address"]["socket_address"]
                return bound["address"], bound["port_value"]
        raise EnvoyAdminError(f"envoy has no listener {name!r}")

    async def _start(self, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        """Start the process and the task that reads its log; `stack` stops both."""
        bootstrap = folder / "bootstrap.yaml"
        await asyncio.to_thread(bootstrap.write_text, self._config_text)
        binary = self._binary
        if binary is None:
            binary = await asyncio.to_thread(find_envoy)
        self._process = await asyncio.create_subprocess_exec(
            binary,
            *("-c", bootstrap),
            *("--concurrency", str(self._concurrency)),
            # With hot restart, parallel Envoys conflict, and each exits with the thread that
            # started it.
            "--disable-hot-restart",
            *("--admin-address-path", folder / "admin"),
            *("-l", self._log_level),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reading = asyncio.create_task(self._read_log(self._process), name="envoy log")
        stack.push_async_callback(self._stop, self._process, self._reading)

    async def _read_log(self, process: asyncio.subprocess.Process) -> None:
        """Read the pipe, so that Envoy does not block on it, and keep the end of the log."""
        assert process.stderr is not None  # noqa: S101 (it is a PIPE)
        while chunk := await process.stderr.read(LOG_BYTES):
            self._log += chunk
            del self._log[:-LOG_BYTES]

    async def _until_ready(self, admin: Path, stack: contextlib.AsyncExitStack) -> None:
        """Wait for the file with the admin address, then for `/ready`.

        Raises:
            EnvoyStartError: Envoy exited.
        """
        process = self._running()
        exited = asyncio.create_task(process.wait(), name="envoy exit")
        try:
            pause, longest = READY_POLL_SECONDS
            while not await self._is_ready(admin, stack):
                await asyncio.wait({exited}, timeout=pause)
                if exited.done() and self._reading is not None:
                    await self._reading  # the reason may still be in the pipe
                    raise EnvoyStartError(
                        f"envoy exited during startup with status {process.returncode}:\n"
                        f"{self.log_tail}"
                    )
                pause = min(2 * pause, longest)
        finally:
            exited.cancel()
            await asyncio.gather(exited, return_exceptions=True)

    async def _is_ready(self, admin: Path, stack: contextlib.AsyncExitStack) -> bool:
        if self._admin is None:
            address = await asyncio.to_thread(_read_if_there, admin)
            if not address:
                return False
            # In a thread: httpx loads the certificate authorities from disk.
            client = await asyncio.to_thread(
                httpx.AsyncClient,
                base_url=f"http://{address}",
                timeout=ADMIN_TIMEOUT_SECONDS,
                trust_env=False,
            )
            self._admin = await stack.enter_async_context(client)
        with contextlib.suppress(httpx.TransportError):
            return (await self._admin.get("/ready")).status_code == httpx.codes.OK
        return False

    async def _stop(self, process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
        """Stop Envoy with SIGTERM, then with SIGKILL."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(self._stop_timeout_seconds):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        await process.wait()
        await reading

    async def _get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the JSON response of the admin endpoint."""
        try:
            response = await self._admin_client().get(path, params=query)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise EnvoyAdminError(f"envoy's admin endpoint, {path}: {error!r}") from error
        document: dict[str, Any] = response.json()
        return document

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("EnvoyProcess was not entered")
        return self._process

    def _admin_client(self) -> httpx.AsyncClient:
        if self._admin is None:
            raise RuntimeError("EnvoyProcess was not entered")
        return self._admin


def _read_if_there(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
