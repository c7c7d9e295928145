"""The page ``/debug/session``: the waiting requests, in their order, and why they wait.

It contains no prompts and no headers. It is built on the event loop, so it is bounded: a long list
is cut after its first entries, and the number of the others is given.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from epp.flow_control.flows import Band, Flow, QueuedRequest
from epp.flow_control.plugins import Share
from epp.flow_control.sessions import ExtensionPoints
from epp.flow_control.sessions.contracts import PLUGIN_FAULTS, PluginFault
from epp.flow_control.views.session_page import (
    BandLine,
    FlowLine,
    RequestLine,
    SessionPage,
    SessionPluginLine,
    ShareLine,
)
from epp.observability import DebugPage, printable

PATH = "session"
MOST = 100
"""Maximum number of requests and flows per band, of parked requests and of faults on the page."""


class Queues(Protocol):
    """The current queues."""

    @property
    def bands(self) -> Sequence[Band]:
        """All bands, from high to low."""

    @property
    def saturation(self) -> Mapping[str, float]:
        """The saturation by stage; 1.0 is full."""

    @property
    def ceilings(self) -> Mapping[int, float]:
        """The ceilings of the bands by priority."""

    @property
    def blocked(self) -> str:
        """Why no band may dispatch; "" if one may."""

    @property
    def parked(self) -> Iterable[QueuedRequest]:
        """Requests that no endpoint can take for now."""

    def flows(self, band: Band) -> Sequence[Flow]:
        """Return the flows of ``band``: the next one first, flows without ready requests last."""

    def reasons(self, queued: QueuedRequest) -> Sequence[str]:
        """Return why ``queued`` waits; nothing if it was not tried."""

    def shares(self, flow: Flow) -> Mapping[str, Share]:
        """Return the shares of ``flow`` according to the fairness policy, by resource."""


def session_pages(
    queues: Queues, points: ExtensionPoints, plugins: Iterable[str], clock: Callable[[], float]
) -> dict[str, DebugPage]:
    """Return ``/debug/session`` and the pages that session plugins registered below it.

    Args:
        queues: The queues.
        points: The registered functions of session plugins.
        plugins: The names of the plugins, in configured order.
        clock: Returns the time in seconds.
    """
    pages = {PATH: DebugPage(lambda: session_page(queues, points, plugins, clock()))}
    for path, (plugin, function) in points.http_handlers.items():
        pages[f"{PATH}/{path}"] = DebugPage(function, owner=f"session plugin {plugin!r}")
    return pages


def session_page(
    queues: Queues, points: ExtensionPoints, plugins: Iterable[str], now: float
) -> SessionPage:
    """Return the current page; ``now`` is the time in seconds."""
    maker = _Maker(queues, points, now)
    bands = [maker.band(band) for band in queues.bands]
    parked = list(queues.parked)
    return SessionPage(
        waiting=sum(band.waiting for band in bands),
        size_bytes=sum(band.size_bytes for band in bands),
        saturation=dict(queues.saturation),
        blocked=printable(queues.blocked),
        bands=bands,
        parked=[maker.parked(queued) for queued in parked[:MOST]],
        more_parked=max(0, len(parked) - MOST),
        faults=[*islice(maker.faults, MOST)],
        plugins=[
            SessionPluginLine(
                name=printable(name),
                pages=[
                    path for path, held in sorted(points.http_handlers.items())
                    if held.plugin == name
                ],
            )
            for name in plugins
        ],
    )  # fmt: skip


class _Maker:
    def __init__(self, queues: Queues, points: ExtensionPoints, now: float) -> None:
        self._queues = queues
        self._points = points
        self._now = now
        self.faults: dict[str, None] = {}
        """Failures of plugins, each once."""
        self._saturation = max(queues.saturation.values(), default=0.0)
        self._parked = Counter(queued.priority for queued in queues.parked)

    def band(self, band: Band) -> BandLine:
        flows = self._queues.flows(band)
        listed = flows[:MOST]
        requests = [self.request(*each) for each in islice(_in_rounds(listed), MOST)]
        ceiling = self._queues.ceilings.get(band.priority)
        return BandLine(
            priority=band.priority,
            waiting=band.waiting,
            max_requests=band.max_requests,
            size_bytes=band.size_bytes,
            max_bytes=band.max_bytes,
            ceiling=ceiling,
            blocked=self._blocked(ceiling) if band.waiting else "",
            flows=[self._flow(flow) for flow in listed],
            more_flows=len(flows) - len(listed),
            requests=requests,
            more_requests=max(0, band.waiting - self._parked[band.priority] - len(requests)),
        )

    def parked(self, queued: QueuedRequest) -> RequestLine:
        return self.request(0, queued, self._reasons(queued))

    def request(
        self, place: int, queued: QueuedRequest, reasons: Sequence[str] = ()
    ) -> RequestLine:
        request = queued.request
        return RequestLine(
            request_id=printable(request.request_id),
            flow=printable(queued.queue.fairness_id),
            priority=request.priority,
            model=printable(request.model or request.target_model),
            size_bytes=queued.size_bytes,
            waited_seconds=self._now - queued.enqueued_at,
            remaining_seconds=(
                None if queued.expires_at is None else max(0.0, queued.expires_at - self._now)
            ),
            tries=queued.tries,
            place=place,
            reasons=[*reasons],
        )

    def _reasons(self, queued: QueuedRequest) -> list[str]:
        return [printable(reason) for reason in self._queues.reasons(queued)]

    def _flow(self, flow: Flow) -> FlowLine:
        head = flow.head if flow.has_head else None
        return FlowLine(
            flow=printable(flow.fairness_id),
            waiting=flow.waiting,
            size_bytes=flow.size_bytes,
            head_waited_seconds=None if head is None else self._now - head.enqueued_at,
            reasons=[] if head is None else self._reasons(head),
            shares=[*self._shares(flow)],
        )

    def _shares(self, flow: Flow) -> Iterator[ShareLine]:
        """Yield the shares of the fairness policy, then those of session plugins."""
        try:
            yield from [
                ShareLine(
                    resource=printable(resource),
                    used=_number(used),
                    deserved=_number(deserved),
                    share=_number(share),
                )
                for resource, (used, deserved, share) in self._queues.shares(flow).items()
            ]
        except PLUGIN_FAULTS as error:
            self._fault(f"the fairness policy of priority {flow.band.priority}", "shares", error)
        amounts: dict[str, float | None] = {}
        for name, (plugin, function) in self._points.amounts.items():
            try:
                amounts[name] = _number(function(flow))
            except PLUGIN_FAULTS as error:
                self._fault(f"session plugin {plugin!r}", repr(name), error)
        if amounts:
            yield ShareLine(
                resource="size",
                used=amounts.get("allocated"),
                deserved=amounts.get("deserved"),
                share=amounts.get("fair_share"),
            )

    def _fault(self, owner: str, what: str, error: PluginFault) -> None:
        text = printable(f"{owner} failed in {what}: {type(error).__name__}: {error}")
        self.faults[text] = None

    def _blocked(self, ceiling: float | None) -> str:
        if self._queues.blocked:
            return printable(self._queues.blocked)
        if ceiling is not None and not self._saturation < ceiling:
            return f"the saturation is {self._saturation:.3g}, not below the ceiling {ceiling:.3g}"
        return ""


def _in_rounds(flows: Iterable[Flow]) -> Iterator[tuple[int, QueuedRequest]]:
    """Yield the first request of every flow, then the second, and so on, each with its place."""
    left = [flow.in_order() for flow in flows]
    place = 0
    while left:
        place += 1
        following: list[Iterator[QueuedRequest]] = []
        for waiting in left:
            queued = next(waiting, None)
            if queued is not None:
                yield place, queued
                following.append(waiting)
        left = following


def _number(amount: object) -> float | None:
    """Return an amount of a plugin.

    Raises:
        TypeError: It is not a number, so the page could not be decoded.
    """
    if amount is not None and not isinstance(amount, int | float):
        raise TypeError(f"{amount!r} is not a number")
    return amount
