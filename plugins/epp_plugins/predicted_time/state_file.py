"""Saves and loads what the model has learned."""

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

_log = structlog.get_logger(__name__)

_VERSION = 1
_MOST_BYTES = 16 * 1024 * 1024

Moment = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class ServiceState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sums of a :class:`~epp_plugins.predicted_time.service.ServiceModel`."""

    moments: tuple[Moment, Moment, Moment, Moment, Moment, Moment]
    right: tuple[Moment, Moment, Moment]
    samples: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class EndpointState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model has learned about one endpoint."""

    serial: tuple[Moment, Moment]
    """Measured and predicted seconds in serial mode."""
    in_slots: tuple[Moment, Moment]
    """The same in slots mode."""
    slots: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
    decode_seconds: Seconds


class FleetState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model has learned."""

    version: Annotated[int, msgspec.Meta(ge=_VERSION, le=_VERSION)]
    serial: ServiceState
    in_slots: ServiceState
    is_serial: bool
    serial_error: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
    slots_error: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
    mean_service: Annotated[float, msgspec.Meta(gt=0.0, le=1e6)]
    endpoints: dict[str, EndpointState]

    @property
    def samples(self) -> int:
        """Number of first tokens learned from, counted once for each mode that learned from it."""
        return self.serial.samples + self.in_slots.samples

    @staticmethod
    def current_version() -> int:
        """Return the version that is written."""
        return _VERSION


_THREAD = "predicted-time state"


class StateFile:
    """Reads and writes one file; a write replaces it in one step.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._has_failed = False
        self._writer: threading.Thread | None = None

    def read(self) -> FleetState | None:
        """Return the saved state; None without a file, and, after a warning, for a bad one."""
        try:
            with self._path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            if len(content) > _MOST_BYTES:
                raise ValueError(f"longer than {_MOST_BYTES} bytes")  # noqa: TRY301 - one message
            return msgspec.json.decode(content, type=FleetState)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            _log.warning(
                "learned state refused, learning starts anew",
                file=str(self._path),
                reason=str(error),
                remedy="move the file away to keep it; the next write replaces it",
            )
            return None

    def write_in_thread(self, state: FleetState) -> None:
        """Write ``state`` in a thread; does nothing while a write is in progress."""
        if self._writer is not None and self._writer.is_alive():
            return
        self._writer = threading.Thread(target=self.write, args=(state,), name=_THREAD, daemon=True)
        self._writer.start()

    def finish(self, state: FleetState) -> None:
        """Write ``state`` after a write in progress, in a thread for which the process waits.

        A reload that removes the producer calls it on the event loop, which must not wait for the
        disk.
        """
        earlier = self._writer

        def write() -> None:
            if earlier is not None:
                earlier.join()
            self.write(state)

        self._writer = threading.Thread(target=write, name=_THREAD, daemon=False)
        self._writer.start()

    def write(self, state: FleetState) -> None:
        """Replace the file; a failure is logged once until a write succeeds."""
        try:
            self._replace(msgspec.json.encode(state))
        except OSError as error:
            if not self._has_failed:
                _log.warning("learned state not written", file=str(self._path), reason=str(error))
            self._has_failed = True
        else:
            self._has_failed = False

    def _replace(self, content: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


class StateKeeper:
    """Reads the state of a model at the start, and writes it periodically and at the end.

    An instance without requests writes nothing, because it may only check a configuration. Nothing
    is written before the file has been read.

    Args:
        path: Path of the file; "" to keep no state.
        interval_seconds: Time between two writes.
        now: Seconds of the clock.
    """

    __slots__ = ("_file", "_has_sent", "_interval_seconds", "_is_reading", "_write_at")

    def __init__(self, path: str, interval_seconds: float, now: float) -> None:
        self._file = StateFile(path) if path else None
        self._interval_seconds = interval_seconds
        self._write_at = now + interval_seconds
        self._has_sent = False
        self._is_reading = False

    def read(self, use: Callable[[FleetState], None]) -> None:
        """Pass the saved state to ``use``, unless there is no file or it cannot be used.

        A reload calls this on the event loop, which must not wait for the disk: then a thread reads
        the file, and ``use`` is called afterwards.
        """
        if self._file is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            if (state := self._file.read()) is not None:
                use(state)
            return
        self._is_reading = True
        loop.run_in_executor(None, self._file.read).add_done_callback(partial(self._was_read, use))

    def sent(self, state: Callable[[], FleetState], now: float) -> None:
        """Record that a request was sent; write what ``state`` returns if a write is due."""
        self._has_sent = True
        if self._file is not None and now >= self._write_at and not self._is_reading:
            self._write_at = now + self._interval_seconds
            self._file.write_in_thread(state())

    def close(self, state: Callable[[], FleetState]) -> None:
        """Write what ``state`` returns for the last time."""
        if self._file is not None and self._has_sent and not self._is_reading:
            self._file.finish(state())

    def _was_read(
        self, use: Callable[[FleetState], None], reading: asyncio.Future[FleetState | None]
    ) -> None:
        self._is_reading = False
        if not reading.cancelled() and (state := reading.result()) is not None:
            use(state)
