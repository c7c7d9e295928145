"""Notifies systemd that the process has started, reloads, stops or is alive; see sd_notify(3).

A unit with ``Type=notify`` names a datagram socket in NOTIFY_SOCKET. Without that variable nothing
is sent; SIGHUP reloads in either case.
"""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self

import structlog

log = structlog.get_logger(__name__)

Reload = Callable[[], Awaitable[Sequence[str]]]
"""Reloads the configurations; returns why each one is not in use, "" if it is."""

_RECEIVERS: Final = ("/", "@")
"""First characters of a unix socket's name: a path, or a name in the abstract namespace."""


class ServiceManager:
    """Sends notifications to the service manager of the process, if it has one.

    Args:
        address: The socket: a path, or ``@`` and a name in the abstract namespace. "" for none.
        watchdog_seconds: Time without a message after which the service manager ends the process; 0
            for never.
    """

    def __init__(self, address: str = "", *, watchdog_seconds: float = 0.0) -> None:
        self._address = address
        self._watchdog_seconds = watchdog_seconds
        self._started = asyncio.Event()

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Return the service manager that the environment names."""
        address = environment.get("NOTIFY_SOCKET", "")
        if address and not address.startswith(_RECEIVERS):
            log.warning("this kind of NOTIFY_SOCKET is not supported", socket=address)
            address = ""
        is_for_another = environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid())
        limit = "" if is_for_another else environment.get("WATCHDOG_USEC", "")
        return cls(address, watchdog_seconds=int(limit) / 1e6 if limit.isdecimal() else 0.0)

    def started(self, status: str) -> None:
        """Notify that the process serves; ``status`` is shown by ``systemctl status``."""
        self._started.set()
        self._send(READY="1", STATUS=status)

    @asynccontextmanager
    async def notified(self, stop: asyncio.Event, reload: Reload) -> AsyncIterator[None]:
        """Reload on SIGHUP; notify of reloads, of ``stop``, and that the event loop is alive.

        The messages are sent by the event loop, so that a blocked loop sends none.
        """
        asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, asked.set)
        async with asyncio.TaskGroup() as tasks:
            notifiers = [
                tasks.create_task(self._reload_when(asked, reload), name="reload"),
                tasks.create_task(self._notify_stop(stop), name="notify-stop"),
            ]
            if self._watchdog_seconds:
                notifiers.append(tasks.create_task(self._notify_alive(), name="notify-alive"))
            try:
                yield
            finally:
                for task in notifiers:
                    task.cancel()

    async def _reload_when(self, asked: asyncio.Event, reload: Reload) -> None:
        await self._started.wait()  # the message after a reload says that the process serves
        while True:
            await asked.wait()
            asked.clear()
            self._send(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
            faults = [each for each in await reload() if each]
            status = f"new configuration refused: {faults[0]}" if faults else "serving"
            self._send(READY="1", STATUS=status)

    async def _notify_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._send(STOPPING="1", STATUS="draining")

    async def _notify_alive(self) -> None:
        while True:
            self._send(WATCHDOG="1")
            await asyncio.sleep(self._watchdog_seconds / 2)

    def _send(self, **facts: str) -> None:
        if not self._address:
            return
        # A line break would begin another assignment.
        lines = [f"{name}={' '.join(value.splitlines())}" for name, value in facts.items()]
        is_abstract = self._address.startswith("@")
        receiver = f"\0{self._address[1:]}" if is_abstract else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(lines).encode(), receiver)
        except OSError as error:
            log.warning("cannot notify the service manager", facts=facts, error=str(error))
