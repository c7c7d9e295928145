"""In any history of three candidates and their networks, no two lead at the same time."""

import asyncio
import random
from dataclasses import dataclass
from typing import Final, get_args

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.kubernetes.api import Connection

from .candidates import Candidate, Election
from .conftest import connect
from .fake_api import EVENTS, LEASES, FakeApi
from .fake_state import RefusedError
from .links import Fate

EVENTS_OF_A_CANDIDATE: Final = [
    "kill",
    "stop",
    "start",
    "cut",
    "hang",
    "lose",
    "delay",
    "pause",
    "mend",
    "jump",
]
EVENTS_OF_THE_SERVER: Final = ["away", "back", "refuse", "annotate"]


@dataclass(frozen=True)
class Step:
    """Something happens, and time passes."""

    event: str
    place: int
    """Which of the candidates it concerns."""
    seconds: float


STEPS = st.lists(
    st.builds(
        Step,
        event=st.sampled_from(EVENTS_OF_A_CANDIDATE + EVENTS_OF_THE_SERVER),
        place=st.sampled_from([0, 0, 1, 2]),
        seconds=st.sampled_from([0.0, 0.5, 2.0, 6.0, 11.0, 16.0, 40.0]),
    ),
    max_size=25,
)


class Simulation:
    """An election, and what can happen to it."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.rng = random.Random(seed)
        self.election = Election(FakeApi([LEASES, EVENTS]), connection)
        self.started = 0
        self.places = [self.start() for _ in range(3)]

    def start(self) -> Candidate:
        self.started += 1
        candidate = self.election.start(f"process-{self.started}")
        candidate.clock_rate = self.rng.uniform(0.95, 1.05)
        return candidate

    async def happen(self, event: str, place: int) -> None:
        candidate = self.places[place]
        match event:
            case "kill":
                await candidate.kill()
            case "stop":
                await candidate.stop()
            case "start" if not candidate.runs:
                self.places[place] = self.start()
            case "mend":
                self.mend(candidate)
            case _ if event in EVENTS_OF_THE_SERVER:
                self.happen_to_server(event)
            case _:
                self.impair(candidate, event)

    def impair(self, candidate: Candidate, event: str) -> None:
        link, rng = candidate.link, self.rng
        match event:
            case "cut":
                link.is_cut = True
            case "hang":
                link.is_hung = True
            case "lose":
                losses = ("nothing", *get_args(Fate.__annotations__["loses"]))
                link.fate = lambda: Fate(rng.random(), rng.random(), rng.choice(losses))
            case "delay":
                link.fate = lambda: Fate(rng.uniform(0, 12), rng.uniform(0, 6))
            case "pause":
                link.client.pause_seconds = lambda: rng.choice([0, 0, rng.uniform(0, 30)])
            case "jump":
                candidate.wall_offset = rng.uniform(-3600, 3600)

    def happen_to_server(self, event: str) -> None:
        api = self.election.api
        match event:
            case "away":
                for each in self.places:
                    each.link.is_cut = True
            case "back":
                for each in self.places:
                    each.link.is_cut = not each.runs
            case "refuse":
                api.faults.refusals.append(RefusedError(500, "InternalError", "broken"))
            case "annotate" if api.state.select(LEASES, lambda _: True):
                api.update(LEASES, "l", labels={"n": str(self.rng.random())})

    def mend(self, candidate: Candidate) -> None:
        link = candidate.link
        link.is_cut = not candidate.runs
        link.is_hung = False
        link.fate = Fate
        link.client.pause_seconds = lambda: 0.0

    async def watch(self) -> None:
        """Check all the time; a candidate may begin to lead between two calls, too."""
        while True:
            self.election.check()
            await asyncio.sleep(0.2)

    async def run(self, steps: list[Step]) -> None:
        for step in steps:
            await self.happen(step.event, step.place)
            await asyncio.sleep(step.seconds)
        # In the end one leads and goes on leading.
        for place, candidate in enumerate(self.places):
            self.mend(candidate)
            await self.happen("start", place)
        await asyncio.sleep(90)
        terms = sum(len(each.gains) for each in self.places)
        assert [each.is_leader for each in self.places].count(True) == 1
        await asyncio.sleep(60)
        assert sum(len(each.gains) for each in self.places) == terms
        leader = next(each.elector.identity for each in self.places if each.is_leader)
        assert {each.elector.leader for each in self.places} == {leader}
        self.check_history()

    def check_history(self) -> None:
        """Each change of the holder is a transition, and nothing else is one."""
        holder, transitions = "", -1
        for spec in self.election.specs:
            is_taken = spec["holderIdentity"] not in {"", holder}
            holder = spec["holderIdentity"]
            transitions += is_taken
            assert spec["leaseTransitions"] == transitions


async def _simulate(connection: Connection, steps: list[Step], seed: int) -> None:
    simulation = Simulation(connection, seed)
    watch = asyncio.create_task(simulation.watch())
    try:
        await simulation.run(steps)
    finally:
        watch.cancel()
        await simulation.election.close()


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Connection:
    return connect(tmp_path_factory.mktemp("kube"), "http://replaced")


@pytest.mark.timeout(300)  # needs 10 s of CPU time
@settings(max_examples=30)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_no_two_candidates_lead_at_the_same_time(
    connection: Connection, steps: list[Step], seed: int
) -> None:
    # Nothing comes from outside the loop; 42 idle turns, the default, take 10 times as long.
    with asyncio.Runner(loop_factory=lambda: looptime.new_event_loop(noop_cycles=1)) as runner:
        runner.run(_simulate(connection, steps, seed))
