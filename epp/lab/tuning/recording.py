"""Recorded traffic (`epp serve --explain-file`) as a scenario, and the facts that it lacks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from epp.lab.envoy import Mode
from epp.lab.fleet import EngineConfig
from epp.lab.results import Distribution
from epp.lab.scenarios import LabScenario
from epp.lab.simulation import Contender, VirtualLoop
from epp.lab.simulation.policies import PolicyRouter
from epp.lab.simulation.replicas import ONE_REPLICA, ReplicaPlan
from epp.lab.simulation.routing import Router
from epp.lab.simulation.servers import SimulatedServer
from epp.lab.traffic.traces.decisions import DecisionRow, read_rows
from epp.lab.tuning.errors import TuningError

RECORDED = "recorded"
"""Name of the recorded choices in tables."""


@dataclass(frozen=True, slots=True)
class RecordedChoices(Contender):
    """Sends each request to its recorded server, and refused ones to the idlest server."""

    servers: tuple[int, ...] = ()
    """Index of the server by the index of the request; -1 for a refused one."""

    def make_router(
        self,
        servers: Sequence[SimulatedServer],
        loop: VirtualLoop,
        *,
        seed: int,
        mode: Mode,
        scrape_interval_seconds: float,
        hedging_budget_percent: int = 0,
        objects: Sequence[Path] = (),
        replicas: ReplicaPlan = ONE_REPLICA,
    ) -> Router:
        del loop, seed, mode, scrape_interval_seconds, hedging_budget_percent, objects, replicas
        chosen = self.servers

        def choose(request_index: int, in_flight: Sequence[int]) -> int:
            server = chosen[request_index]
            return in_flight.index(min(in_flight)) if server < 0 else server

        return PolicyRouter(
            len(servers), lambda request, in_flight: choose(request.traffic.index, in_flight)
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded decisions, in the order of arrival."""

    path: Path
    rows: Sequence[DecisionRow]

    @classmethod
    def read(cls, path: Path) -> "Recording":
        """Read a file, and the files that its rotation has renamed.

        Raises:
            TrafficError: It cannot be read, or a line is no decision.
            TuningError: It has no decision.
        """
        rows = read_rows(path)
        if not rows:
            raise TuningError(f"{path}: has no decision; write one with epp serve --explain-file")
        return cls(path, rows)

    @property
    def endpoints(self) -> list[str]:
        """Names of the endpoints that were chosen."""
        return sorted({row.endpoint for row in self.rows if row.endpoint})

    @property
    def workers(self) -> int:
        """The largest number of endpoints in one decision, at least that of `endpoints`."""
        most = max(row.candidates for row in self.rows)
        return max(1, most, len(self.endpoints))

    @property
    def choices(self) -> RecordedChoices:
        """The recorded choices, to compare with."""
        index = {name: at for at, name in enumerate(self.endpoints)}
        return RecordedChoices(
            RECORDED, servers=tuple(index.get(row.endpoint, -1) for row in self.rows)
        )

    @property
    def first_bytes(self) -> Distribution | None:
        """Recorded times from the headers to the first byte of the response."""
        return Distribution.of_seconds(
            row.first_byte_seconds for row in self.rows if row.first_byte_seconds is not None
        )

    def scenario(self, engine: EngineConfig, like: LabScenario | None) -> LabScenario:
        """Return a scenario with this traffic.

        Args:
            engine: Settings of each server.
            like: Scenario whose servers, objectives and warm-up to take instead.
        """
        if like is None:
            return LabScenario(
                name=self.path.stem,
                description="recorded decisions",
                engines=[engine] * self.workers,
                traffic={"trace": str(self.path.absolute()), "format": "decisions"},
            )
        return like.changed(trace=self.path)

    def check(self, scenario: LabScenario) -> None:
        """Check that a scenario has a server for each recorded endpoint.

        Raises:
            TuningError: It has fewer.
        """
        servers, endpoints = len(scenario.engines), len(self.endpoints)
        if servers < endpoints:
            raise TuningError(
                f"{self.path}: has decisions for {endpoints} endpoints, and there are {servers}"
                f" servers; give --workers {endpoints}"
            )

    def unknowns(self) -> Iterator[str]:
        """Yield the facts that the record lacks, and the assumptions made instead."""
        rows = self.rows
        count = len(rows)
        newest, oldest = max(row.sequence for row in rows), min(row.sequence for row in rows)
        if (made := newest - oldest + 1) > count:
            yield (
                f"{count} of {made} decisions are in the file: the load is {count / made:.0%} of"
                f" what it was; --time-scale {count / made:.2f} makes up for it"
            )
        if missing := sum(row.prompt_tokens is None for row in rows):
            yield f"length of {missing} of {count} prompts: a quarter of the bytes of the body"
        if missing := sum(not row.completion_tokens for row in rows):
            yield f"length of {missing} of {count} outputs: drawn from the others, by seed"
        if missing := sum(not row.endpoint for row in rows):
            yield f"{missing} of {count} requests were refused: they are sent like the others"
        yield "which prompts share a text: one for each tenant and model, as long as a cache held"
        yield "speed and size of the servers: those of --engine or --scenario"
        yield "sessions, priorities and other headers: none; clients do not wait for responses"
