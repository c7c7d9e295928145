"""The cases of the study: engines, fleets, traffic and loads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from epp.lab.scenarios import LabScenario, scenario_of

WORKERS = 4
ENGINES: Mapping[str, str] = {"A": "study-a", "B": "study-b"}
"""Presets by name: A computes one prompt after the other, B batches continuously."""

_SLOW = 1 / 3
FLEETS: Mapping[str, Mapping[int, float]] = {
    "equal": {},
    "one slow": {0: _SLOW},
    "mixed": {0: 0.4, 1: 0.6, 2: 0.8},
    "slow mid-run": {},
    "crash": {},
}
"""Speeds of workers other than 1, by worker."""

TRAFFIC: Mapping[str, Mapping[str, Any]] = {
    "agents": {
        "generator": "agents",
        "agents": 8,
        "agent_skew": 1.0,
        "system_tokens": 4000,
        "task_tokens": "lognormal:1500:12000",
        "calls": "2-10",
        "result_tokens": "lognormal:500:4000",
        "output_tokens": "lognormal:130:700",
        "tool_time": "500ms",
    },
    "prefixes": {
        "generator": "shared-prefix",
        "groups": 60,
        "system_tokens": 3000,
        "question_tokens": "lognormal:1200:12000",
        "output_tokens": "lognormal:150:700",
    },
    "no reuse": {
        "generator": "random",
        "prompt_tokens": "lognormal:1500:8000",
        "output_tokens": "lognormal:150:600",
    },
    "long decode": {
        "generator": "shared-prefix",
        "groups": 4,
        "system_tokens": 200,
        "question_tokens": "lognormal:150:800",
        "output_tokens": "lognormal:1000:4000",
    },
}
"""Generated traffic by name, without its rate."""

UNEQUAL = ("one slow", "mixed", "slow mid-run")
"""Fleets with unequal speeds, the only thing to learn if prompts share nothing."""
PARITY = ("no reuse", "long decode")
"""Traffic that gains nothing from prefix caches."""
CALLS_PER_TASK = 6.0
"""Requests of one arrival of `agents`, on average."""
_BLOCKS = 6000
"""Blocks of a worker's cache: `agents` and `prefixes` fill several of them."""
_OVERLOAD_RATE = 400.0


@dataclass(frozen=True, slots=True)
class Case:
    """One fleet with one kind of traffic."""

    engine: str
    fleet: str
    traffic: str

    @property
    def name(self) -> str:
        """Name in tables and results."""
        return f"{self.engine} {self.fleet}, {self.traffic}"

    @property
    def is_parity(self) -> bool:
        """Whether the traffic gains nothing from prefix caches."""
        return self.traffic in PARITY

    def scenario(self, rate: float, requests: int) -> LabScenario:
        """Return the case at a rate of requests a second.

        Args:
            rate: Mean rate.
            requests: Number of requests.
        """
        calls = CALLS_PER_TASK if self.traffic == "agents" else 1.0
        seconds = requests / rate
        traffic = {
            **TRAFFIC[self.traffic],
            "arrivals": {"rate": round(rate / calls, 4)},
            "limit": requests,
        }
        return scenario_of(
            {
                "description": self.name,
                "fleet": {
                    "workers": WORKERS,
                    "engine": {
                        "preset": ENGINES[self.engine],
                        "num_blocks": _BLOCKS,
                        "max_model_len": _BLOCKS * 16,
                    },
                    "overrides": {
                        index: {"speed": speed} for index, speed in FLEETS[self.fleet].items()
                    },
                },
                "traffic": traffic,
                "faults": self._faults(seconds),
                "slo": {"ttft": "2s"},
                "warm_up": round(0.15 * seconds, 3),
                "timeout": 3600,
            },
            name=self.name,
        )

    def overload(self, requests: int) -> LabScenario:
        """Return the case with a rate far above the fleet's capacity."""
        return self.scenario(_OVERLOAD_RATE, requests)

    def _faults(self, seconds: float) -> list[dict[str, Any]]:
        at, length = round(seconds / 3, 3), round(seconds / 3, 3)
        if self.fleet == "slow mid-run":
            return [{"kind": "straggler", "at": at, "for": length, "worker": 0, "speed": _SLOW}]
        if self.fleet == "crash":
            return [{"kind": "crash", "at": at, "for": round(seconds / 6, 3), "worker": 0}]
        return []


def cases(*, is_coarse: bool) -> Iterator[Case]:
    """Yield the cases; a coarse study leaves out half of the fleets."""
    fleets = ("equal", "one slow", "slow mid-run") if is_coarse else tuple(FLEETS)
    for engine in ENGINES:
        for fleet in fleets:
            for traffic in ("agents", "prefixes"):
                yield Case(engine, fleet, traffic)
        for traffic in PARITY:
            yield Case(engine, "equal", traffic)
        for fleet in UNEQUAL:
            yield Case(engine, fleet, "no reuse")


def loads(case: Case, *, is_coarse: bool) -> tuple[float, ...]:
    """Return the loads of a case; 1 is the throughput of the reference default in overload."""
    if case.is_parity and case.fleet == "equal":
        return (0.7,) if is_coarse else (0.3, 0.7, 0.9)
    if case.is_parity:
        return (0.9,) if is_coarse else (0.5, 0.9, 1.1)
    return (0.6, 0.9) if is_coarse else (0.3, 0.5, 0.7, 0.9, 1.1)
