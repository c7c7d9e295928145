"""Flow control as operators see it: gauges for Prometheus, and the pages below /debug/session."""

from collections.abc import Callable, Mapping, Sequence

from epp.flow_control.control import FlowControl
from epp.flow_control.controller import FlowController
from epp.flow_control.flows import Band, Flow, QueuedRequest
from epp.flow_control.plugins import Share
from epp.flow_control.queues.bands import PolicyBand
from epp.flow_control.views.debug_page import session_pages
from epp.observability import DebugPage


class FlowGauges:
    """The state that the thread of the metrics server reads; nothing is computed there."""

    def __init__(self, control: FlowControl) -> None:
        self._control = control

    @property
    def bands(self) -> Sequence[PolicyBand]:
        """All bands, from high to low."""
        return self._control.ledger.bands.in_order

    @property
    def max_requests(self) -> int | None:
        """The limit on waiting requests of all bands; None for no limit."""
        return self._control.settings.max_requests

    @property
    def max_bytes(self) -> int | None:
        """The limit on the bytes of waiting requests of all bands; None for no limit."""
        return self._control.settings.max_bytes

    def saturation(self) -> Mapping[str, float]:
        """Return the saturation by stage, as last measured."""
        by_stage = dict(self._control.capacity.saturation)
        if by_stage:
            by_stage["effective"] = max(by_stage.values())
        return by_stage

    def stale_endpoints(self) -> Mapping[str, int]:
        """Return the number of endpoints that were never scraped, by the name of the detector."""
        pool = self._control.capacity.pool
        unknown = sum(each.metrics.requested_at is None for each in pool)
        return {self._control.settings.detector.plugin.name: unknown}


class WaitingView:
    """The waiting requests in their order; used on the event loop."""

    def __init__(self, control: FlowControl, clock: Callable[[], float]) -> None:
        self._control = control
        self._clock = clock

    @property
    def bands(self) -> Sequence[Band]:
        """All bands, from high to low."""
        return self._control.ledger.bands.in_order

    @property
    def saturation(self) -> Mapping[str, float]:
        """The current saturation by stage."""
        self._control.capacity.measure()
        return self._control.capacity.saturation

    @property
    def ceilings(self) -> Mapping[int, float]:
        """The ceilings by priority, as last computed."""
        return self._control.capacity.ceilings

    @property
    def blocked(self) -> str:
        """Why no band may dispatch; "" if one may, or no request waits."""
        return self._control.capacity.blocked

    @property
    def parked(self) -> Sequence[QueuedRequest]:
        """Requests that no endpoint can take for now."""
        return self._control.ledger.parking.requests

    def flows(self, band: Band) -> Sequence[Flow]:
        """Return the flows of ``band``: the next one first, flows without ready requests last."""
        ready = self._control.ledger.bands[band.priority].in_order()
        known = set(ready)
        return [*ready, *(flow for flow in band.flows.values() if flow not in known)]

    def reasons(self, queued: QueuedRequest) -> Sequence[str]:
        """Return why ``queued`` waits."""
        return self._control.reasons(queued)

    def shares(self, flow: Flow) -> Mapping[str, Share]:
        """Return the shares of ``flow`` according to the fairness policy, by resource."""
        band = self._control.ledger.bands[flow.band.priority]
        return band.settings.fairness.plugin.shares(flow, self._clock())


def flow_gauges(controller: FlowController) -> FlowGauges | None:
    """Return the gauges; None while flow control is off and no request waits."""
    control = controller.shown
    return None if control is None else FlowGauges(control)


def debug_pages(controller: FlowController) -> dict[str, DebugPage]:
    """Return the pages of flow control; none while it is off and no request waits."""
    if (control := controller.shown) is None:
        return {}
    dispatcher = control.sessions.dispatcher
    names = [plugin.name for plugin in dispatcher.plugins]
    view = WaitingView(control, controller.now)
    return session_pages(view, dispatcher.points, names, controller.now)
