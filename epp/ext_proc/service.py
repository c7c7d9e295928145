"""The ext_proc service: creates a state machine for each stream and tracks the open ones."""

import asyncio
from collections.abc import Callable, Mapping
from math import inf

from epp.ext_proc.gateway_metadata import abilities
from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.interfaces import RequestHandlers, TransportStream
from epp.ext_proc.pauses import ENDS_AT_ONCE, end_in_pauses, end_safely, let_messages_come
from epp.ext_proc.settings import ExtProcSettings
from epp.ext_proc.stream import ExtProcStream
from epp.ext_proc.time_limits import TimeLimits
from epp.ext_proc.upload_watch import UploadWatch
from epp.observability import Metrics
from epp.request_control import Refusals
from epp.tracing import Tracer

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
"""The gRPC method Envoy calls."""


class ExtProcService:
    """Creates the handler of each stream; ``open_streams`` are those not yet closed."""

    def __init__(
        self,
        handlers: RequestHandlers,
        clock: Callable[[], float],
        *,
        settings: ExtProcSettings | None = None,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Create a service without streams.

        Args:
            handlers: Chooses the handler of each stream's requests.
            clock: Monotonic seconds.
            settings: Limits, and the form of the replies; None for the defaults.
            metrics: Where refused streams are counted; None to count them nowhere.
            tracer: Traces the requests; None without tracing.
        """
        self._handlers = handlers
        self._clock = clock
        self._tracer = tracer
        self._settings = settings or ExtProcSettings()
        # Without an OutcomeWatch: what Envoy sends says nothing about the EPP's configuration.
        self._refusals = Refusals(metrics or Metrics(), clock)
        limits = self._settings
        self.open_streams: set[ExtProcStream] = set()
        self.held = HeldBytes(
            limits.max_held_bytes,
            lambda: [stream.request_body for stream in self.open_streams],
            clock,
        )
        """The memory account of all requests."""
        self.uploads = UploadWatch(
            lambda: self.open_streams, self.held, settings=limits, clock=clock
        )
        """Its ``run`` belongs to the application's task group."""
        self._max_streams = limits.max_streams or inf
        self.time_limits: TimeLimits | None = None
        """None without limits; its ``run`` belongs to the application's task group."""
        if limits.stream_idle_timeout_seconds or limits.max_stream_seconds:
            self.time_limits = TimeLimits(
                idle_seconds=limits.stream_idle_timeout_seconds,
                open_seconds=limits.max_stream_seconds,
                clock=clock,
            )
        self._empty = asyncio.Event()

    def opened(self, stream: TransportStream, headers: Mapping[str, str]) -> ExtProcStream:
        """Return the handler of a new stream with these gRPC headers."""
        opened = ExtProcStream(
            stream,
            self._handlers.of_stream(headers),
            self._clock,
            self._closed,
            settings=self._settings,
            refusals=self._refusals,
            held=self.held,
            gateway=abilities(headers),
            gateway_headers=headers,
            tracer=self._tracer,
        )
        if len(self.open_streams) >= self._max_streams:
            opened.is_surplus = True
        if self.time_limits is not None:
            self.time_limits.opened(opened)
        self.open_streams.add(opened)
        return opened

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for the open streams to end; after the time limit, end the rest with gRPC OK."""
        if await self._all_end(timeout_seconds):
            return
        for number, stream in enumerate(list(self.open_streams)):
            if number % ENDS_AT_ONCE == 0:
                await let_messages_come()
            if stream.passed_bytes is None:
                end_safely(stream.drain)
        await end_in_pauses(self.open_streams, lambda stream: end_safely(stream.drain))
        for stream in list(self.open_streams):
            end_safely(stream.drain)

    async def _all_end(self, timeout_seconds: float) -> bool:
        """Wait until no stream is open; return False if the time limit comes first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while self.open_streams:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _closed(self, stream: ExtProcStream) -> None:
        self.open_streams.discard(stream)
        if self.time_limits is not None:
            self.time_limits.closed(stream)
        if not self.open_streams:
            self._empty.set()
