"""Small bodies are decided at once; others wait for their turn."""

import asyncio
import gc
import gzip
import random
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import pytest
import zstandard
from structlog.testing import capture_logs

from epp.parsing import BodyLimits, Decoding
from epp.request_control import (
    BadRequestError,
    BodyLanes,
    BodyQueue,
    BodyTooLargeError,
    CostlyBodiesError,
    DecodedBodyTooLargeError,
    Director,
    EndCause,
    HeldBytesError,
    InternalError,
    PendingDecision,
    RequestError,
    RoutedRequest,
)
from epp.request_control.body_lanes import MAX_SHORT_WAITING, MAX_WAITING
from epp.request_control.body_queue import LONG_BODY_BYTES, SMALL_BODY_BYTES
from epp.request_control.body_work import MAX_WAIT_SECONDS, SHORT_BODY_BYTES, TURN_SECONDS
from epp.transport import read_scheduling
from request_control.producers import Async
from tools.harness.request_control import BODY, HEADERS, Epp, Policies, make_pool

pytestmark = pytest.mark.looptime

MIB = 1 << 20


def body_of(size: int) -> bytes:
    return b'{"model":"llama","prompt":"%s"}' % (b"x" * size)


SMALL = BODY.ljust(SMALL_BODY_BYTES)
SHORT = BODY.ljust(SHORT_BODY_BYTES)
ORDINARY = body_of(SHORT_BODY_BYTES)
LONG = body_of(LONG_BODY_BYTES)
# Above what is decoded at once, and below the ratio that makes it a bomb.
COMPRESSED = gzip.compress(
    b'{"model":"llama","prompt":"%s"}' % random.Random(1).randbytes(100_000).hex().encode()
)


COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
}


class Account:
    """The memory account of one request, with a limit."""

    def __init__(self, limit_bytes: int = 1 << 40) -> None:
        self.held_bytes = 0
        self.limit_bytes = limit_bytes

    def hold(self, size: int) -> None:
        self.held_bytes += size
        if self.held_bytes > self.limit_bytes:
            raise HeldBytesError("no memory left")


class Costs:
    """A clock that each decision advances."""

    def __init__(self) -> None:
        self.now = 0.0
        self.of_body: dict[int, float] = {}
        """Seconds per decision by the size of the body; 0 for other sizes."""

    def __call__(self) -> float:
        return self.now


class CostlyDirector:
    """A director whose decisions take time by the test's clock."""

    def __init__(self, director: Director, costs: Costs) -> None:
        self._director = director
        self._costs = costs

    def handle(self, **request: Any) -> RoutedRequest | PendingDecision:
        body = request.get("decoded") or request["body"]
        assert isinstance(body, bytes)
        self._costs.now += self._costs.of_body.get(len(body), 0.0)
        return self._director.handle(**request)

    def decoding(self, headers: Mapping[str, str], body: bytes | memoryview) -> Decoding | None:
        return self._director.decoding(headers, body)

    def __getattr__(self, name: str) -> object:
        return getattr(self._director, name)


class Asking:
    """Sends requests to the queue, and records their outcomes in order."""

    def __init__(self, *plugins: Async, epp: Epp | None = None) -> None:
        self.epp = epp or Epp(make_pool(), plugins=plugins)
        self.costs = Costs()
        self.lanes = BodyLanes(clock=self.costs, cpu_clock=self.costs)
        self.director = CostlyDirector(self.epp.director, self.costs)
        self.queue = BodyQueue(cast("Director", self.director), self.lanes)
        self.decided: list[str] = []
        self.decodings = 0
        self.outcomes: dict[str, RoutedRequest | RequestError] = {}
        self._changed = asyncio.Event()

    def ask(
        self,
        name: str,
        body: bytes | memoryview = LONG,
        account: Account | None = None,
        **headers: str,
    ) -> PendingDecision | None:
        """Send a request; return its pending decision, None if it was decided at once."""
        given = {key.replace("_", "-"): value for key, value in headers.items()}
        try:
            decision = self.queue.handle(
                request_id=name,
                headers=HEADERS | given,
                body=body,
                received_at=self.epp.clock.now,
                memory=account or Account(),
            )
        except RequestError as error:
            self._note(name, error)
            return None
        if isinstance(decision, PendingDecision):
            decision.then(lambda outcome: self._note(name, outcome))
            return decision
        self._note(name, decision)
        return None

    def slow_decoding(self, seconds: float) -> None:
        """Set the duration of each step of decoding, and count the steps."""

        class SlowDecoding(Decoding):
            __slots__ = ()

            def advance(decoding, max_bytes: int) -> None:  # noqa: N805 - self is the asking one
                self.decodings += 1
                self.costs.now += seconds
                super().advance(max_bytes)

        def decoding(headers: Mapping[str, str], body: bytes | memoryview) -> Decoding | None:
            return SlowDecoding.of(headers, body, BodyLimits())

        self.director.decoding = decoding  # type: ignore[method-assign] # with the test's clock

    async def settled(self, count: int) -> None:
        """Wait until ``count`` requests have an outcome."""
        while len(self.decided) < count:
            self._changed.clear()
            await self._changed.wait()

    def _note(self, name: str, outcome: RoutedRequest | RequestError) -> None:
        self.decided.append(name)
        self.outcomes[name] = outcome
        self._changed.set()


# --- turns --------------------------------------------------------------------------------------


async def test_one_long_body_is_decided_per_turn_in_the_order_in_which_they_came() -> None:
    asking = Asking()
    asking.costs.of_body[len(LONG)] = 0.001
    for name in "abcd":
        assert asking.ask(name) is not None
    assert asking.lanes.waiting == 4
    seen = [""]
    while len(asking.decided) < 4:
        await asyncio.sleep(0)
        if seen[-1] != (decided := "".join(asking.decided)):
            seen.append(decided)
    assert seen == ["", "a", "ab", "abc", "abcd"]
    assert asking.epp.in_flight == 4


@pytest.mark.parametrize("size", [len(BODY), SHORT_BODY_BYTES])
async def test_short_bodies_wait_for_nothing(size: int) -> None:
    asking = Asking()
    asking.ask("long")
    assert asking.ask("short", BODY.ljust(size)) is None
    assert asking.decided == ["short"]
    await asking.settled(2)


async def test_as_many_short_bodies_are_decided_in_a_turn_as_it_has_time_for() -> None:
    """A thousand bodies that ended together were decided in one turn of 2.1 s."""
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = TURN_SECONDS * 0.4
    waits = [asking.ask(str(number), SHORT) is not None for number in range(9)]
    assert waits == [False] * 3 + [True] * 6
    assert asking.lanes.waiting == 6
    seen = {len(asking.decided)}
    while asking.lanes.waiting:
        await asyncio.sleep(0)
        seen.add(len(asking.decided))
    assert seen == {3, 6, 9}
    assert asking.decided == [str(number) for number in range(9)]


async def test_bodies_leave_most_of_a_connections_turn_to_reading() -> None:
    """Small requests stayed unread for 1.2 s, until all bodies before them were decided."""
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = read_scheduling.TURN_SECONDS * 0.3
    waits = [asking.ask(str(number), SHORT) is not None for number in range(9)]
    assert waits == [False] + [True] * 8
    await asking.settled(9)


async def test_small_bodies_do_not_wait_behind_short_ones() -> None:
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = 2 * TURN_SECONDS
    assert asking.ask("a", SHORT) is None
    assert asking.ask("b", memoryview(SHORT)) is not None
    assert asking.ask("small", SMALL) is None
    await asking.settled(3)
    assert asking.decided == ["a", "small", "b"]


async def test_a_source_with_many_short_bodies_makes_only_itself_wait() -> None:
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = 2 * TURN_SECONDS
    for number in range(9):
        asking.ask(f"flood {number}", SHORT, x_forwarded_for="10.0.0.9")
    asking.ask("other", SHORT, x_forwarded_for="10.0.0.7")
    await asking.settled(10)
    assert asking.decided.index("other") <= 2


async def test_short_bodies_are_decided_at_once_where_too_many_wait() -> None:
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = 2 * TURN_SECONDS
    for number in range(1 + MAX_SHORT_WAITING):
        asking.ask(str(number), SHORT)
    assert asking.lanes.waiting == MAX_SHORT_WAITING
    assert asking.ask("one more", SHORT) is None
    await asking.settled(2 + MAX_SHORT_WAITING)
    assert all(isinstance(each, RoutedRequest) for each in asking.outcomes.values())


async def test_a_short_body_whose_client_has_left_is_not_decided() -> None:
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = 2 * TURN_SECONDS
    waiting = [asking.ask(name, SHORT) for name in "abc"]
    assert waiting[1] is not None
    waiting[1].cancel(EndCause.CLIENT_DISCONNECT)
    await asking.settled(2)
    assert asking.decided == ["a", "c"]
    assert asking.lanes.waiting == 0


async def test_a_short_body_that_cannot_be_read_leaves_the_others_their_turn() -> None:
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = 2 * TURN_SECONDS
    for name, body in (("a", SHORT), ("broken", SHORT.replace(b"}", b" ")), ("c", SHORT)):
        asking.ask(name, body)
    await asking.settled(3)
    assert isinstance(asking.outcomes["broken"], BadRequestError)
    assert isinstance(asking.outcomes["c"], RoutedRequest)


async def test_ordinary_bodies_are_decided_at_once_while_their_turn_has_room() -> None:
    asking = Asking()
    asking.costs.of_body[len(ORDINARY)] = TURN_SECONDS * 0.3
    assert asking.ask("first", ORDINARY) is None
    assert asking.ask("second", ORDINARY) is None
    asking.costs.of_body[len(ORDINARY)] = TURN_SECONDS * 0.4
    assert asking.ask("third", ORDINARY) is None
    assert asking.ask("fourth", ORDINARY) is not None
    await asking.settled(4)
    for _ in range(3):
        await asyncio.sleep(0)
    assert asking.ask("in another turn", ORDINARY) is None


async def test_twenty_bodies_that_end_together_do_not_have_one_turn() -> None:
    """They stalled the loop for 8.2 s."""
    loop = asyncio.get_running_loop()
    asking = Asking()
    asking.costs.of_body[len(ORDINARY)] = 0.26
    decided_at = [loop.time()]
    for number in range(20):
        asking.ask(str(number), ORDINARY)
    assert asking.decided == ["0"]
    for count in range(2, 21):
        await asking.settled(count)
        assert len(asking.decided) == count
        decided_at.append(loop.time())
    rests = [later - earlier for earlier, later in pairwise(decided_at)]
    assert rests == pytest.approx([0.26] * 19, abs=0.001)


async def test_after_a_body_that_took_long_the_others_have_as_much_time() -> None:
    loop = asyncio.get_running_loop()
    asking = Asking()
    asking.costs.of_body[len(LONG)] = 0.04
    began = loop.time()
    asking.ask("a")
    asking.ask("b")
    asking.ask("c")
    await asking.settled(3)
    assert loop.time() - began == pytest.approx(0.08, abs=0.001), "a rest after a, and after b"


async def test_an_ordinary_body_that_took_long_is_followed_by_a_rest_too() -> None:
    loop = asyncio.get_running_loop()
    asking = Asking()
    asking.costs.of_body[len(ORDINARY)] = 0.04
    assert asking.ask("a", ORDINARY) is None
    await asyncio.sleep(0)
    began = loop.time()
    assert asking.ask("b", ORDINARY) is not None
    await asking.settled(2)
    assert loop.time() - began == pytest.approx(0.04, abs=0.001)


async def test_ordinary_bodies_do_not_wait_behind_long_ones() -> None:
    asking = Asking()
    asking.costs.of_body[len(LONG)] = 1.0
    for name in "abc":
        asking.ask(name)
    await asking.settled(1)
    for _ in range(4):
        await asyncio.sleep(0)
    assert asking.ask("ordinary", ORDINARY) is None
    await asking.settled(4)


async def test_a_source_that_sends_many_makes_only_itself_wait() -> None:
    asking = Asking()
    for number in range(8):
        asking.ask(f"flood {number}", x_forwarded_for="10.0.0.9")
    asking.ask("other", x_forwarded_for="10.0.0.9, 10.0.0.7")
    await asking.settled(9)
    assert asking.decided.index("other") <= 1


async def test_beyond_so_many_the_source_with_most_of_them_is_refused() -> None:
    asking = Asking()
    for number in range(MAX_WAITING):
        assert asking.ask(f"flood {number}", x_forwarded_for="10.0.0.9") is not None
    assert asking.ask("other", x_forwarded_for="10.0.0.7") is not None
    last = asking.outcomes[f"flood {MAX_WAITING - 1}"]
    assert isinstance(last, CostlyBodiesError)
    assert asking.ask("one more", x_forwarded_for="10.0.0.9") is None
    assert isinstance(asking.outcomes["one more"], CostlyBodiesError)
    assert asking.epp.value("request_limit_exceeded_total", limit="costly-bodies") == 2
    await asking.settled(MAX_WAITING + 2)
    assert isinstance(asking.outcomes["other"], RoutedRequest)


async def test_those_that_have_left_take_no_places() -> None:
    """After 256 abandoned requests, the next one of their source got a 503."""
    asking = Asking()
    flood = [asking.ask(f"flood {number}") for number in range(MAX_WAITING)]
    for each in flood[1:]:
        assert each is not None
        each.cancel(EndCause.CLIENT_DISCONNECT)
    assert asking.lanes.waiting == 1
    assert asking.ask("honest") is not None
    await asking.settled(2)
    assert asking.decided == ["flood 0", "honest"]


async def test_one_that_has_left_is_not_refused_for_another() -> None:
    """It was counted, logged and answered again, on a closed stream."""
    asking = Asking()
    flood = [
        asking.ask(f"flood {number}", x_forwarded_for="10.0.0.9") for number in range(MAX_WAITING)
    ]
    last = flood[-1]
    assert last is not None
    last.cancel(EndCause.CLIENT_DISCONNECT)
    assert asking.ask("other", x_forwarded_for="10.0.0.7") is not None
    assert asking.outcomes == {}
    assert asking.epp.value("request_limit_exceeded_total", limit="costly-bodies") == 0
    await asking.settled(MAX_WAITING)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        pytest.param(b'{"model":1,%s' % (b"x" * 1000), {}, id="a short body"),
        pytest.param(b'{"model":1,%s' % (b"x" * SHORT_BODY_BYTES), {}, id="an ordinary body"),
        pytest.param(b'{"model":1,%s' % (b"x" * LONG_BODY_BYTES), {}, id="a long body"),
        pytest.param(b"x" * 1000, {"content_encoding": "gzip"}, id="no gzip, at once"),
        pytest.param(b"x" * LONG_BODY_BYTES, {"content_encoding": "gzip"}, id="no gzip, later"),
    ],
)
async def test_nothing_of_a_body_that_cannot_be_read_is_left(
    body: bytes, headers: Mapping[str, str]
) -> None:
    """Four bodies of 40 MB took 913 MB until the garbage collector ran."""
    gc.collect()
    gc.freeze()  # what there is already is not looked at
    gc.disable()
    try:
        asking = Asking()
        references = sys.getrefcount(body)
        waiting = asking.ask("a", body, None, **headers)
        asking.ask("b", BODY)
        await asking.settled(2)
        assert isinstance(asking.outcomes["a"], BadRequestError)
        asking.outcomes.clear()
        del waiting
        await asyncio.sleep(1.0)  # the turn ends
        await asyncio.get_running_loop().shutdown_default_executor()  # which holds its last task
        assert sys.getrefcount(body) == references
    finally:
        gc.enable()


async def test_whoever_has_waited_for_too_long_is_refused() -> None:
    asking = Asking()
    asking.ask("a")
    asking.ask("b")
    asking.costs.now += MAX_WAIT_SECONDS + 1
    await asking.settled(2)
    assert {type(each) for each in asking.outcomes.values()} == {CostlyBodiesError}
    assert "waited for 30 s" in str(asking.outcomes["a"])


# --- ends ---------------------------------------------------------------------------------------


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
    await asking.settled(2)
    assert asking.decided == ["a", "d"]
    assert asking.epp.in_flight == 2


async def test_one_that_is_refused_gets_its_error_in_its_turn() -> None:
    asking = Asking()
    with capture_logs() as lines:
        asking.ask("a", LONG[:-2])
        assert asking.decided == []
        await asking.settled(1)
    assert isinstance(asking.outcomes["a"], BadRequestError)
    assert [line["event"] for line in lines] == ["request refused"]


@pytest.mark.parametrize("is_wanted", [True, False], ids=["wanted", "not wanted any more"])
async def test_one_that_waits_for_a_producer_does_so_after_its_turn(is_wanted: bool) -> None:
    asking = Asking(Async("slow"))
    waiting = asking.ask("c")
    assert waiting is not None
    for _ in range(4):
        await asyncio.sleep(0)  # its turn
    if not is_wanted:
        waiting.cancel(EndCause.CLIENT_DISCONNECT)
    await asyncio.sleep(1)
    assert ("c" in asking.outcomes) is is_wanted
    assert asking.epp.in_flight == len(asking.decided)


@pytest.mark.parametrize("body", [SHORT, LONG], ids=["short", "long"])
async def test_a_fault_of_the_queue_ends_one_request_and_no_other(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Asking()
    asking.costs.of_body[len(SHORT)] = 2 * TURN_SECONDS
    if body is SHORT:
        asking.ask("before", SHORT)
        asking.decided.clear()
    decide, calls = asking.lanes.work.decide, 0

    def broken(request: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return decide(request)

    monkeypatch.setattr(asking.lanes.work, "decide", broken)
    asking.ask("a", body)
    asking.ask("b", body)
    with capture_logs() as lines:
        await asking.settled(2)
    assert isinstance(asking.outcomes["a"], InternalError)
    assert isinstance(asking.outcomes["b"], RoutedRequest)
    assert [line["event"] for line in lines if line["log_level"] == "error"] == [
        "request failed inside the EPP"
    ]


# --- compressed bodies --------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_compressed_body_that_stays_small_is_decided_at_once(encoding: str) -> None:
    asking, account = Asking(), Account()
    assert asking.ask("a", COMPRESS[encoding](BODY), account, content_encoding=encoding) is None
    assert isinstance(asking.outcomes["a"], RoutedRequest)
    assert account.held_bytes == len(BODY)


def gzip_of_nothing(blocks: int) -> bytes:
    """Return BODY as gzip, after ``blocks`` empty blocks of 5 bytes."""
    head, rest = (whole := gzip.compress(BODY, mtime=0))[:10], whole[10:]
    return head + b"\x00\x00\x00\xff\xff" * blocks + rest


async def test_a_long_body_that_decodes_to_little_is_decoded_elsewhere() -> None:
    """64 MiB of empty blocks blocked the loop for 6 s, and 16 MB honest requests for 4 s."""
    asking, account = Asking(), Account()
    blocks = SHORT_BODY_BYTES // 5
    assert asking.ask("a", gzip_of_nothing(blocks), account, content_encoding="gzip") is not None
    assert account.held_bytes == 0, "nothing of it is decoded yet"
    await asking.settled(1)
    assert isinstance(asking.outcomes["a"], RoutedRequest)
    assert account.held_bytes == len(BODY)
    assert asking.ask("short", gzip_of_nothing(blocks // 2), content_encoding="gzip") is None


async def test_others_have_their_turn_between_the_slices_of_a_body() -> None:
    """60 MB of empty blocks delayed the compressed bodies of all other sources by 12 s."""
    asking = Asking()
    slow = gzip_of_nothing(4 * MIB // 5)
    asking.ask("slow", slow, content_encoding="gzip", x_forwarded_for="10.0.0.9")
    await asyncio.sleep(0)  # its thread has it
    asking.ask("other", COMPRESSED, content_encoding="gzip", x_forwarded_for="10.0.0.7")
    await asking.settled(2)
    assert asking.decided == ["other", "slow"]
    assert all(isinstance(each, RoutedRequest) for each in asking.outcomes.values())


async def test_one_that_leaves_between_two_slices_is_not_decoded_on() -> None:
    asking = Asking()
    asking.slow_decoding(1.0)
    waiting = asking.ask("slow", gzip_of_nothing(4 * MIB // 5), content_encoding="gzip")
    assert waiting is not None
    asking.ask("other", x_forwarded_for="10.0.0.7")
    await asking.settled(1)
    waiting.cancel(EndCause.CLIENT_DISCONNECT)
    assert asking.lanes.waiting == 0
    asking.ask("last")
    await asking.settled(2)
    assert asking.decided == ["other", "last"]
    assert asking.decodings == 1


async def test_decoding_at_once_counts_on_the_turn() -> None:
    """150 bodies of 16 KB that ended together stalled the loop for 160 ms."""
    asking = Asking()
    asking.slow_decoding(TURN_SECONDS * 0.6)
    compressed = gzip.compress(BODY)
    waiting = [asking.ask(name, compressed, content_encoding="gzip") for name in "abcd"]
    assert asking.decided == ["a"]
    assert waiting[0] is None
    assert all(each is not None for each in waiting[1:])
    assert asking.decodings == 2, "the third finds no time in this turn"
    await asking.settled(4)
    assert all(isinstance(each, RoutedRequest) for each in asking.outcomes.values())


async def test_a_compressed_body_that_grows_is_decoded_elsewhere_and_counted() -> None:
    asking, account = Asking(), Account()
    assert asking.ask("a", COMPRESSED, account, content_encoding="gzip") is not None
    await asking.settled(1)
    outcome = asking.outcomes["a"]
    assert isinstance(outcome, RoutedRequest)
    assert outcome.request.body_bytes == account.held_bytes == len(gzip.decompress(COMPRESSED))


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_bomb_is_refused_before_it_has_grown(encoding: str) -> None:
    asking, account = Asking(), Account()
    asking.ask("a", COMPRESS[encoding](body_of(32 * MIB)), account, content_encoding=encoding)
    await asking.settled(1)
    assert isinstance(asking.outcomes["a"], DecodedBodyTooLargeError)
    assert asking.epp.value("request_limit_exceeded_total", limit="compression-ratio") == 1
    assert account.held_bytes <= 4 * MIB


async def test_a_body_that_decodes_to_more_than_is_taken_in_is_refused() -> None:
    asking = Asking(epp=Epp(make_pool(), max_decompressed_bytes=100_000))
    asking.ask("a", COMPRESSED, content_encoding="gzip")
    await asking.settled(1)
    assert isinstance(asking.outcomes["a"], BodyTooLargeError)


async def test_without_memory_for_it_a_body_is_not_decoded_on() -> None:
    asking = Asking()
    asking.ask("a", COMPRESSED, Account(limit_bytes=100_000), content_encoding="gzip")
    await asking.settled(1)
    assert isinstance(asking.outcomes["a"], HeldBytesError)
    assert asking.epp.value("request_limit_exceeded_total", limit="held-bytes") == 1


@pytest.mark.parametrize(
    ("body", "when"),
    [
        pytest.param(COMPRESSED[:50], "at once", id="cut off at its start"),
        pytest.param(COMPRESSED[:-20], "later", id="cut off at its end"),
    ],
)
async def test_what_is_not_as_its_headers_say_is_refused(body: bytes, when: str) -> None:
    asking = Asking()
    waiting = asking.ask("a", body, content_encoding="gzip")
    assert (waiting is not None) == (when == "later")
    await asking.settled(1)
    assert isinstance(asking.outcomes["a"], BadRequestError)
    assert "is truncated" in str(asking.outcomes["a"])


async def test_one_that_leaves_while_it_is_decoded_is_not_counted_on() -> None:
    asking, account = Asking(), Account()
    waiting = asking.ask("a", COMPRESSED, account, content_encoding="gzip")
    assert waiting is not None
    held = account.held_bytes
    await asyncio.sleep(0)  # its thread has it
    waiting.cancel(EndCause.CLIENT_DISCONNECT)
    asking.ask("b", COMPRESSED, content_encoding="gzip")
    await asking.settled(1)
    assert account.held_bytes == held
    assert asking.decided == ["b"]


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"content-encoding": "br"}, id="an unknown encoding"),
        pytest.param({"content-encoding": "gzip", ":path": "/elsewhere"}, id="an unclaimed path"),
    ],
)
async def test_what_nobody_decodes_is_passed_on_as_it_is(headers: Mapping[str, str]) -> None:
    asking = Asking()
    asking.queue.handle(
        request_id="a", headers={**HEADERS, **headers}, body=COMPRESSED, received_at=0.0
    )
    assert asking.epp.in_flight == 1


@pytest.mark.parametrize("encoding", ["", "gzip", "br"])
async def test_a_view_of_a_message_becomes_bytes_elsewhere(encoding: str) -> None:
    asking, account = Asking(), Account()
    headers = {"content-encoding": encoding} if encoding else {}
    body = LONG if not encoding else gzip.compress(LONG, compresslevel=0)
    asking.ask("a", memoryview(body), account, **headers)
    await asking.settled(1)
    outcome = asking.outcomes["a"]
    assert isinstance(outcome, RoutedRequest)
    assert account.held_bytes == (len(LONG) if encoding != "br" else len(body))
    assert outcome.request.prompt == (b"" if encoding == "br" else b'"%s"' % (b"x" * MIB))


# --- the account --------------------------------------------------------------------------------


async def test_a_body_with_another_model_name_is_counted() -> None:
    epp = Epp(make_pool(), policies=Policies(targets={"llama": "a-longer-name"}))
    asking, account = Asking(epp=epp), Account()
    assert asking.ask("a", BODY, account) is None
    assert account.held_bytes == len(BODY) + len("a-longer-name") - len("llama")


async def test_a_prompt_that_waits_is_counted_once() -> None:
    asking, account = Asking(Async("slow"), Async("slower")), Account()
    asking.ask("a", BODY, account)
    assert account.held_bytes == len(b'"hello"')
    await asyncio.sleep(1)
    assert isinstance(asking.outcomes["a"], RoutedRequest)
    assert account.held_bytes == len(b'"hello"')
