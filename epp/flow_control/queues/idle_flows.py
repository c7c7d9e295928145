"""Removal of flows that have been idle for a long time."""

import asyncio
from collections import OrderedDict
from typing import Final

from epp.flow_control.flows import Flow
from epp.flow_control.interfaces import FlowHost
from epp.flow_control.queues.bands import Bands, PolicyBand
from epp.flow_control.sessions import Cluster

IDLE_FLOW_SECONDS: Final = 300.0
MAX_IDLE_FLOWS: Final = 10_000
"""They take 14 MB. Clients choose fairness ids, so beyond this number the oldest idle flow is
removed."""

_EVERY_SECONDS: Final = 60.0
_MAX_AT_ONCE: Final = 64
"""Flows removed per turn of the event loop: removing the metric series of one takes 15 us."""


class IdleFlows:
    """Keeps idle flows for a while, because fairness policies keep state in them.

    A timer runs only while there are idle flows.
    """

    def __init__(self, bands: Bands, cluster: Cluster, host: FlowHost) -> None:
        self._bands = bands
        self._cluster = cluster
        self._host = host
        # An OrderedDict: finding the first key of a dict walks over all keys removed before it.
        self._idle: OrderedDict[Flow, None] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def flow(self, band: PolicyBand, fairness_id: str, now: float) -> Flow:
        """Return the flow of an arriving request; it is no longer idle."""
        known = fairness_id in band.flows
        flow = band.flow(fairness_id, now)
        if known:
            self._idle.pop(flow, None)
        else:
            self._cluster.add_queue(flow)
        return flow

    def note(self, flow: Flow, now: float) -> None:
        """Note that a request of ``flow`` was forgotten; the flow may be idle now."""
        if flow.waiting or flow.running:
            return
        flow.served_at = now
        self._idle[flow] = None
        self._idle.move_to_end(flow)
        if len(self._idle) > MAX_IDLE_FLOWS:
            self._remove(next(iter(self._idle)))
        if self._timer is None:
            self._sweep_in(_EVERY_SECONDS)

    def _sweep_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        horizon = self._host.now() - IDLE_FLOW_SECONDS
        for _ in range(_MAX_AT_ONCE):
            flow = next(iter(self._idle), None)
            if flow is None:
                return
            if flow.served_at > horizon:
                self._sweep_in(_EVERY_SECONDS)
                return
            self._remove(flow)
        self._sweep_in(0.0)

    def _remove(self, flow: Flow) -> None:
        del self._idle[flow]
        band = flow.band
        del band.flows[flow.fairness_id]
        self._cluster.remove_queue(flow)
        self._host.observer.flow_removed(flow)
