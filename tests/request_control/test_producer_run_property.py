"""Property: a request waits only for producers it needs, and loses only the keys of failed ones."""

import asyncio
from dataclasses import dataclass

import looptime
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.request_control import EndCause, PendingDecision, RoutedRequest
from epp.scheduling import Plugin
from request_control.producers import Async, Sync, failures, key
from tools.harness.request_control import Epp, make_pool

LIMIT = 4.0


@dataclass(frozen=True)
class Node:
    """A producer and its behaviour."""

    needs: frozenset[int]
    does: str
    seconds: int

    @property
    def is_async(self) -> bool:
        return self.does in {"answer", "raise later", "applies to nothing", "fail to apply"}

    def plugin(self, position: int, notes: list[str]) -> Plugin:
        name, reads = f"p{position}", [f"p{need}" for need in sorted(self.needs)]
        if self.is_async:
            fails = {"raise later": "prepare_async", "fail to apply": "applies_to"}
            return Async(
                name,
                *reads,
                seconds=self.seconds,
                limit=LIMIT,
                notes=notes,
                applies=self.does != "applies to nothing",
                fails_in=fails.get(self.does, ""),
            )
        return Sync(name, *reads, notes=notes, fails_in="prepare" if self.does == "raise" else "")


DEEDS = ["write", "raise", "answer", "answer", "raise later", "applies to nothing", "fail to apply"]


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    return [
        Node(
            frozenset(draw(st.sets(st.integers(0, position - 1), max_size=2)) if position else ()),
            draw(st.sampled_from(DEEDS)),
            draw(st.sampled_from([1, 2, 3, 6])),  # 6 is too long
        )
        for position in range(draw(st.integers(1, 7)))
    ]


def expected(nodes: list[Node]) -> tuple[dict[str, str], list[float]]:
    """Return the reason of each failure, and the time at which each producer is settled."""
    failed: dict[str, str] = {}
    settled: list[float] = []
    for position, node in enumerate(nodes):
        began = max((settled[need] for need in node.needs), default=0.0)
        broken = [need for need in sorted(node.needs) if f"p{need}" in failed]
        own = {"raise": "error", "raise later": "error", "fail to apply": "error"}.get(node.does)
        takes = 0.0
        if broken:
            own = f"needs p{broken[0]}"
        elif node.does in {"answer", "raise later"}:
            takes = min(node.seconds, LIMIT)
            own = "timeout" if node.seconds > LIMIT else own
        if own:
            failed[f"p{position}"] = own
        settled.append(began + takes)
    return failed, settled


def virtual(test: object) -> None:
    """Run a coroutine function on a loop whose clock jumps."""
    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:
        runner.run(test())  # type: ignore[operator] # a coroutine function


@given(graphs())
def test_a_request_waits_as_long_as_needed_and_loses_what_depends_on_failures(
    nodes: list[Node],
) -> None:
    async def test() -> None:
        notes: list[str] = []
        epp = Epp(make_pool(), plugins=[n.plugin(i, notes) for i, n in enumerate(nodes)])
        loop = asyncio.get_running_loop()
        failed, settled = expected(nodes)
        began = loop.time()
        decision = epp.ask()
        if isinstance(decision, PendingDecision):
            outcome = loop.create_future()
            decision.then(outcome.set_result)
            decision = await outcome
        else:
            assert max(settled) == 0
        assert isinstance(decision, RoutedRequest)
        assert loop.time() - began == max(settled)
        assert failures(decision) == failed
        for position, node in enumerate(nodes):
            name = f"p{position}"
            is_written = decision.state.read(key(name)) == name
            assert is_written is (name not in failed and node.does in {"write", "answer"})
        assert len(notes) == len(set(notes))  # nobody is asked twice
        decision.close(EndCause.COMPLETED)
        assert epp.in_flight == epp.director.pipeline.open_requests == 0

    with capture_logs():
        virtual(test)


@given(graphs(), st.sampled_from([0, 0.5, 1, 1.5, 2.5, 3.5, 4.5]))
def test_a_request_taken_back_at_any_time_leaves_nothing_behind(
    nodes: list[Node], seconds: float
) -> None:
    async def test() -> None:
        notes: list[str] = []
        epp = Epp(make_pool(), plugins=[n.plugin(i, notes) for i, n in enumerate(nodes)])
        decision = epp.ask()
        outcomes: list[object] = []
        if isinstance(decision, PendingDecision):
            decision.then(outcomes.append)
            await asyncio.sleep(seconds)
            were_made = len(outcomes)
            decision.cancel(EndCause.CLIENT_DISCONNECT)
            await asyncio.sleep(100)
            assert len(outcomes) == were_made == epp.in_flight
            assert epp.director.pipeline.open_requests == were_made
            assert asyncio.all_tasks() == {asyncio.current_task()}

    with capture_logs():
        virtual(test)
