"""A scenario: its servers, traffic, faults and objectives."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from epp.lab.fleet import EngineConfig
from epp.lab.fleet.faults import FaultPlan
from epp.lab.results import Slo
from epp.lab.scenarios.errors import ScenarioError
from epp.lab.traffic import Workload, load_traffic

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabScenario:
    """A scenario, read from a file by :func:`~epp.lab.scenarios.loader.load_scenario`."""

    name: str
    """Name in tables: that of the file."""
    description: str
    """The behaviour that the scenario shows."""
    source: str = ""
    """Source of its numbers."""
    engines: Sequence[EngineConfig]
    """Settings of each worker."""
    labels: Sequence[Mapping[str, str]] = ()
    """Labels of each worker, such as its role; () for none."""
    traffic: Mapping[str, Any]
    """The description of the traffic."""
    folder: Path = Path()
    """Base folder of relative paths in the traffic."""
    faults: FaultPlan = field(default_factory=FaultPlan)
    """Faults of the servers."""
    slo: Slo = field(default_factory=Slo)
    """Objectives that a request must meet to count towards the goodput."""
    warm_up_seconds: float = 0.0
    """Time after the start; requests sent earlier are not counted."""
    network_delay_seconds: float = 0.0
    """Network delay of the way from client to server and the way back together."""
    timeout_seconds: float = 600.0
    """Time after which a client gives up."""
    policies: Sequence[str] = ()
    """Policies to compare by default; the first is the baseline."""

    def workload(self, seed: int) -> Workload:
        """Return the requests of a seed.

        Raises:
            TrafficError: The traffic is invalid, or its trace cannot be read.
        """
        return load_traffic(self.traffic, seed=seed, folder=self.folder, where="traffic")

    def changed(
        self,
        *,
        workers: int | None = None,
        trace: Path | None = None,
        requests: int | None = None,
        time_scale: float | None = None,
        rate: float | None = None,
    ) -> "LabScenario":
        """Return the scenario with some values of the command line in place of its own.

        Args:
            workers: Number of workers; further ones are like the last one.
            trace: Trace file in place of the source of its traffic.
            requests: Maximum number of requests to send.
            time_scale: Factor on the times of the traffic and of the faults; below 1, requests
                come faster.
            rate: Arrivals per second, with the process of the scenario's own arrivals; they replace
                the recorded times of a trace.

        Raises:
            ScenarioError: The rate is not above 0, or each stream of the traffic has its own.
        """
        traffic = dict(self.traffic)
        if trace is not None:
            if "trace" not in traffic:
                kept = ("tenants", "objectives", "adapters", "slos", "limit", "time_scale")
                traffic = {name: traffic[name] for name in kept if name in traffic}
            traffic["trace"] = str(trace.absolute())
        if requests is not None:
            traffic["limit"] = min(requests, traffic.get("limit", requests))
        if time_scale is not None:
            traffic["time_scale"] = traffic.get("time_scale", 1.0) * time_scale
        if rate is not None:
            traffic["arrivals"] = self._arrivals(rate)
        return replace(
            self,
            traffic=traffic,
            engines=_resized(self.engines, workers),
            labels=_resized(self.labels, workers),
            faults=self.faults if time_scale is None else self.faults.scaled(time_scale),
        )

    def _arrivals(self, rate: float) -> dict[str, Any]:
        """Return the arrivals of the traffic at another rate; stages and clients are dropped."""
        if not 0 < rate < math.inf:
            raise ScenarioError(f"rate: {rate:g} is not above 0")
        if "streams" in self.traffic:
            raise ScenarioError(
                f"scenario {self.name}: each of its streams has a rate of its own; change all of"
                " them with a time scale"
            )
        given = self.traffic.get("arrivals")
        kept = ("process", "cv", "on", "off")
        own = given if isinstance(given, Mapping) else {}
        return {name: own[name] for name in kept if name in own} | {"rate": rate}


def _resized(each: Sequence[T], workers: int | None) -> Sequence[T]:
    """Return the values for `workers` workers, repeating the last one; unchanged for None."""
    if workers is None or not each:
        return each
    return [*each[:workers], *[each[-1]] * (workers - len(each))]
