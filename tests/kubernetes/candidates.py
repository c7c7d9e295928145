"""Candidates for leadership on a fake API server, in virtual time."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import suppress

from epp.kubernetes.api import Connection
from epp.kubernetes.leader_election import Elector

from .fake_api import LEASES, FakeApi
from .fake_state import Json
from .links import Link


class Candidate:
    """A process with an elector and a network of its own."""

    def __init__(self, election: "Election", identity: str) -> None:
        self.link = Link(election.api, election.connection)
        self.wall_offset = 0.0
        self.clock_offset = 0.0
        self.clock_rate = 1.0
        """How fast its monotonic clock goes."""
        self.history: list[tuple[float, bool, str]] = []
        """Time, ``is_leader`` and ``leader`` at each call of ``changed``."""
        self._election = election
        self._loop = asyncio.get_running_loop()
        self.elector = Elector(
            self.link.client,
            "d",
            "l",
            identity,
            changed=self._changed,
            clock=self._clock,
            wall_clock=lambda: 1_800_000_000.0 + self._loop.time() + self.wall_offset,
            sleep=self._sleep,
            rng=random.Random(identity),
        )
        self._task = asyncio.create_task(self.elector.run())

    @property
    def is_leader(self) -> bool:
        return self.elector.is_leader

    @property
    def runs(self) -> bool:
        return not self._task.done()

    @property
    def gains(self) -> list[float]:
        """When it began to lead."""
        return self._turns(leads=True)

    @property
    def losses(self) -> list[float]:
        """When it stopped leading."""
        return self._turns(leads=False)

    async def stop(self) -> None:
        """End it as SIGTERM does."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def kill(self) -> None:
        """End it as SIGKILL does: nothing is sent any more."""
        self.link.is_cut = True
        await self.stop()

    def _turns(self, *, leads: bool) -> list[float]:
        led, turns = False, []
        for time, now, _ in self.history:
            if now != led and now == leads:
                turns.append(time)
            led = now
        return turns

    def _clock(self) -> float:
        return self._loop.time() * self.clock_rate + self.clock_offset

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.clock_rate + self.link.client.pause_seconds())

    def _changed(self) -> None:
        self.history.append((self._loop.time(), self.elector.is_leader, self.elector.leader))
        self._election.check()
        self._election.news.set()


class Election:
    """Candidates for one Lease; no two lead at any time."""

    def __init__(self, api: FakeApi, connection: Connection) -> None:
        self.api = api
        self.connection = connection
        self.news = asyncio.Event()
        self.candidates: list[Candidate] = []
        self.double_leaders: set[tuple[str, ...]] = set()
        """Candidates that have led at the same time."""
        api.state.listeners.append(lambda _: self.check())

    def start(self, identity: str) -> Candidate:
        candidate = Candidate(self, identity)
        self.candidates.append(candidate)
        return candidate

    async def until(self, holds: Callable[[], bool]) -> float:
        """Wait until ``holds``, asked at each change of leadership; return the time."""
        while not holds():
            self.news.clear()
            await self.news.wait()
        return asyncio.get_running_loop().time()

    def check(self) -> None:
        leaders = tuple(each.elector.identity for each in self.candidates if each.is_leader)
        if len(leaders) > 1:
            self.double_leaders.add(leaders)

    @property
    def lease(self) -> Json:
        return self.api.state.get(LEASES, ("d", "l"))

    @property
    def spec(self) -> Json:
        spec: Json = self.lease["spec"]
        return spec

    @property
    def specs(self) -> Iterator[Json]:
        """The spec of the Lease after each change."""
        for each in self.api.state.history:
            if each.resource == LEASES and each.after is not None:
                yield each.after["spec"]

    @property
    def holders(self) -> list[str]:
        """The holders in their order."""
        names: list[str] = []
        for spec in self.specs:
            name = spec["holderIdentity"]
            if not names or names[-1] != name:
                names.append(name)
        return names

    async def close(self) -> None:
        for each in self.candidates:
            await each.kill()
        assert not self.double_leaders
