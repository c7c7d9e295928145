"""Large bodies are decided one per turn of the event loop; all others at once."""

import asyncio
import gzip

import pytest
from structlog.testing import capture_logs

from epp.request_control import (
    BadRequestError,
    EndCause,
    Exchange,
    PendingDecision,
    RequestError,
    Turns,
)
from epp.request_control.turns import LARGE_BODY_BYTES
from request_control.harness import BODY, HEADERS, Epp, make_pool
from request_control.producers import Async

pytestmark = pytest.mark.looptime

LARGE = b'{"model":"llama","prompt":"%s"}' % (b"x" * LARGE_BODY_BYTES)
COMPRESSED = gzip.compress(BODY)


class Asking:
    """Hands requests to the director, and writes down what becomes of them, in order."""

    def __init__(self, *plugins: Async) -> None:
        self.epp = Epp(make_pool(), plugins=plugins)
        self.turns = Turns(self.epp.director)
        self.decided: list[str] = []
        self.outcomes: dict[str, Exchange | RequestError] = {}

    def ask(self, name: str, body: bytes = LARGE, **headers: str) -> PendingDecision | None:
        """Ask for a decision; None if it was made at once."""
        decision = self.turns.handle(
            request_id=name,
            headers=HEADERS | {key.replace("_", "-"): value for key, value in headers.items()},
            body=body,
            received_at=self.epp.clock.now,
        )
        if isinstance(decision, PendingDecision):
            decision.then(lambda outcome: self._note(name, outcome))
            return decision
        self._note(name, decision)
        return None

    def _note(self, name: str, outcome: Exchange | RequestError) -> None:
        self.decided.append(name)
        self.outcomes[name] = outcome


async def test_one_is_decided_per_turn_in_the_order_in_which_they_came() -> None:
    asking = Asking()
    for name in "abcd":
        asking.ask(name)
    seen = []
    while len(asking.decided) < 4:
        seen.append("".join(asking.decided))
        await asyncio.sleep(0)
    assert seen == ["a", "ab", "abc"]
    assert asking.epp.in_flight == 4


async def test_after_the_turn_the_next_one_waits_for_nothing() -> None:
    asking = Asking()
    assert asking.ask("a") is None
    await asyncio.sleep(0)
    assert asking.ask("b") is None


@pytest.mark.parametrize("size", [len(BODY), LARGE_BODY_BYTES])
async def test_others_wait_for_nothing(size: int) -> None:
    asking = Asking()
    asking.ask("large")
    asking.ask("waiting")
    assert asking.ask("small", BODY.ljust(size)) is None
    assert asking.decided == ["large", "small"]
    await asyncio.sleep(0)


async def test_a_compressed_body_may_be_large() -> None:
    asking = Asking()
    asking.ask("a", COMPRESSED, content_encoding="gzip")
    assert asking.ask("b", COMPRESSED, content_encoding="gzip") is not None
    await asyncio.sleep(0)
    assert asking.decided == ["a", "b"]


async def test_one_that_nobody_wants_any_more_takes_no_turn() -> None:
    asking = Asking()
    asking.ask("a")
    unwanted = [asking.ask(name) for name in "bc"]
    asking.ask("d")
    with capture_logs() as lines:
        for waiting in unwanted:
            assert waiting is not None
            waiting.cancel(EndCause.CLIENT_DISCONNECT)
            waiting.cancel(EndCause.DRAINED)
    assert lines == [
        {
            "event": "request abandoned before it was decided",
            "log_level": "info",
            "request_id": name,
            "outcome": "client-disconnect",
        }
        for name in "bc"
    ]
    await asyncio.sleep(0)
    assert asking.decided == ["a", "d"]
    assert asking.epp.in_flight == 2


async def test_one_that_is_refused_is_told_so_in_its_turn() -> None:
    asking = Asking()
    asking.ask("a")
    asking.ask("b", LARGE[:-2])
    assert asking.decided == ["a"]
    await asyncio.sleep(0)
    assert isinstance(asking.outcomes["b"], BadRequestError)


@pytest.mark.parametrize("is_wanted", [True, False], ids=["wanted", "not wanted any more"])
async def test_one_that_waits_for_a_producer_does_so_after_its_turn(is_wanted: bool) -> None:
    asking = Asking(Async("slow"))
    asking.ask("a", BODY)
    asking.ask("b")
    waiting = asking.ask("c")
    assert waiting is not None
    await asyncio.sleep(0)  # its turn
    if not is_wanted:
        waiting.cancel(EndCause.CLIENT_DISCONNECT)
    await asyncio.sleep(1)
    assert ("c" in asking.outcomes) is is_wanted
    assert asking.epp.in_flight == len(asking.decided)
