"""What can be seen of flow control from outside: by Prometheus, and on its page."""

from collections.abc import Mapping, Sequence

from epp.flow_control.controller import FlowController
from epp.flow_control.plugins import Share
from epp.flow_control.queues import Band, Flow, QueuedRequest
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.views.debug_page import session_pages
from epp.observability import DebugPage


class FlowGauges:
    """The state that is read in the thread of the metrics server; nothing is computed there."""

    def __init__(self, controller: FlowController) -> None:
        self._controller = controller

    def now(self) -> "FlowGauges | None":
        """Return this; None while flow control is off, once nothing waits that came before."""
        controller = self._controller
        return self if controller.is_on or controller.waiting else None

    @property
    def bands(self) -> Sequence[PolicyBand]:
        """All there are."""
        return self._controller.bands.in_order

    @property
    def max_requests(self) -> int | None:
        """How many may wait in all bands; None for any number."""
        settings = self._controller.settings
        return None if settings is None else settings.max_requests

    @property
    def max_bytes(self) -> int | None:
        """What their bodies may take; None for any amount."""
        settings = self._controller.settings
        return None if settings is None else settings.max_bytes

    def saturation(self) -> Mapping[str, float]:
        """Return how full the pool was when that was looked at last, by stage."""
        by_stage = dict(self._controller.room.saturation)
        if by_stage:
            by_stage["effective"] = max(by_stage.values())
        return by_stage

    def stale_endpoints(self) -> Mapping[str, int]:
        """Return how many endpoints were never scraped, by the detector that is in the dark."""
        settings = self._controller.settings
        if settings is None:
            return {}
        unknown = sum(each.metrics.requested_at is None for each in self._controller.room.pool())
        return {settings.detector.plugin.name: unknown}


class WaitingView:
    """What waits, in its order; asked on the event loop."""

    def __init__(self, controller: FlowController) -> None:
        self._controller = controller

    @property
    def bands(self) -> Sequence[Band]:
        """All there are, from high to low."""
        return self._controller.bands.in_order

    @property
    def saturation(self) -> Mapping[str, float]:
        """How full the pool is, by stage."""
        self._controller.room.look()
        return self._controller.room.saturation

    @property
    def ceilings(self) -> Mapping[int, float]:
        """Up to which saturation a band may go, by its priority."""
        return self._controller.room.ceilings

    @property
    def blocked(self) -> str:
        """Why nothing may go; "" if something may, or nothing waits."""
        return self._controller.room.blocked

    @property
    def parked(self) -> Sequence[QueuedRequest]:
        """Requests that fit nowhere for now."""
        return self._controller.parked

    def flows(self, band: Band) -> Sequence[Flow]:
        """Return the flows of ``band``: the next one first, those where nothing waits last."""
        assert isinstance(band, PolicyBand)  # noqa: S101 - the controller has no others
        in_order = band.in_order()
        in_line = set(in_order)
        return [*in_order, *(flow for flow in band.flows.values() if flow not in in_line)]

    def reason(self, queued: QueuedRequest) -> Sequence[str]:
        """Return why ``queued`` has not gone."""
        return self._controller.reasons(queued)

    def shares(self, flow: Flow) -> Mapping[str, Share]:
        """Return what the fairness policy says that ``flow`` has, by resource."""
        band = self._controller.bands[flow.band.priority]
        return band.settings.fairness.plugin.shares(flow, self._controller.now())

    def pages(self) -> dict[str, DebugPage]:
        """Return the pages there are; none before flow control was ever on."""
        dispatcher = self._controller.dispatcher
        if dispatcher is None or not (self._controller.is_on or self._controller.waiting):
            return {}
        names = [plugin.name for plugin in dispatcher.plugins]
        return session_pages(self, dispatcher.points, names, self._controller.now)
