"""The body of a request, without a stream."""

from collections.abc import Mapping

import pytest

from epp.ext_proc import ExtProcSettings
from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.modes import BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, NONE, STREAMED
from epp.ext_proc.processing_response import MAX_BODY_CHUNK_BYTES, echoed_request, streamed_request
from epp.ext_proc.request_body import RequestBody
from epp.request_control import (
    BodyTooLargeError,
    HeldBytesError,
    PartialBodyError,
    PendingDecision,
    RequestError,
    RoutedRequest,
    SlowBodyError,
)
from tools.harness.wires import Narrow, Recorder

LIMIT = 800
CRITICAL = {"x-critical": "1"}


class Priorities:
    """A handler that only knows priorities."""

    def handle(self, **_: object) -> RoutedRequest | PendingDecision:
        raise NotImplementedError

    def ended_early(self, why: object, **_: object) -> None:
        raise NotImplementedError

    def priority_of(self, headers: Mapping[str, str]) -> int:
        return int("x-critical" in headers)


class Body:
    """A request body, its transport and its account."""

    def __init__(
        self,
        mode: int = FULL_DUPLEX,
        *,
        limit: int = LIMIT,
        max_bytes: int = LIMIT,
        transport: Recorder | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.transport = transport or Recorder()
        self.account = HeldBytes(limit, lambda: [self.body], lambda: 0.0)
        settings = ExtProcSettings(max_body_bytes=max_bytes, max_held_bytes=max(limit, max_bytes))
        self.body = RequestBody(self.transport, self.account, Priorities(), settings)
        self.body.begin(mode, headers or {}, 0.0)
        self.refused: list[RequestError] = []
        self.body.expect(100, self.refused.append)

    def add(self, *chunks: bytes, end: bool = True) -> bool:
        """Add chunks, the last with the end-of-stream flag; return whether the body is complete."""
        *others, last = chunks
        assert not any(self.body.add(chunk, False) for chunk in others)
        return self.body.add(last, end)

    @property
    def figures(self) -> tuple[int, int]:
        return self.account.used_bytes, self.account.arriving_bodies


@pytest.mark.parametrize(
    ("chunks", "whole"),
    [
        pytest.param((b"",), b"", id="empty"),
        pytest.param((b"one",), b"one", id="one chunk"),
        pytest.param((b"one", b"", b"two", b"3"), b"onetwo3", id="several chunks"),
        pytest.param((b"one", b""), b"one", id="an empty end"),
    ],
)
def test_chunks_are_joined_and_counted(chunks: tuple[bytes, ...], whole: bytes) -> None:
    made = Body()
    assert made.add(*chunks)
    assert made.figures == (len(whole), bool(whole))
    assert made.body.is_arriving
    assert made.body.complete() == whole
    assert made.figures == (len(whole), 0)
    assert not made.body.is_arriving
    made.body.drop()
    assert made.figures == (0, 0)


@pytest.mark.parametrize(
    ("mode", "end", "is_complete"),
    [
        pytest.param(FULL_DUPLEX, False, False, id="a chunk"),
        pytest.param(FULL_DUPLEX, True, True, id="the last chunk"),
        pytest.param(STREAMED, True, True, id="the last streamed chunk"),
        pytest.param(BUFFERED, False, True, id="a buffered body before trailers"),
        pytest.param(BUFFERED_PARTIAL, True, True, id="all of a body"),
    ],
)
def test_the_mode_and_the_flag_decide_whether_a_body_is_complete(
    mode: int, end: bool, is_complete: bool
) -> None:
    assert Body(mode).add(b"body", end=end) is is_complete


@pytest.mark.parametrize(
    ("made", "size", "error"),
    [
        pytest.param(Body(max_bytes=10), 11, BodyTooLargeError, id="too long"),
        pytest.param(Body(), LIMIT * 7 // 8 + 1, HeldBytesError, id="in the reserve"),
        pytest.param(Body(headers=CRITICAL), LIMIT + 1, BodyTooLargeError, id="all of the reserve"),
        pytest.param(Body(BUFFERED_PARTIAL), 1, PartialBodyError, id="the start alone"),
    ],
)
def test_a_body_that_cannot_be_kept_is_an_error(
    made: Body, size: int, error: type[RequestError]
) -> None:
    with pytest.raises(error):
        made.add(b" " * size, end=False)
    made.body.close(False)
    assert made.figures == (0, 0)


def test_a_critical_body_may_use_the_reserve() -> None:
    assert Body(headers=CRITICAL).add(b" " * LIMIT)


def test_other_bytes_of_the_request_are_counted_until_the_end() -> None:
    made = Body()
    made.body.hold(50)
    made.add(b"body")
    assert made.body.held_bytes == 54
    with pytest.raises(HeldBytesError):
        made.body.hold(LIMIT)
    made.body.close(False)
    assert made.figures == (0, 0)


def test_an_arriving_body_can_be_evicted_and_a_complete_one_cannot() -> None:
    made = Body()
    made.add(b"body", end=False)
    made.body.evict()
    assert [type(error) for error in made.refused] == [SlowBodyError]
    made.body.complete()
    made.body.evict()
    assert len(made.refused) == 1


LONG = b"x" * (2 * MAX_BODY_CHUNK_BYTES + 1)


@pytest.mark.parametrize(
    ("mode", "chunks", "rewritten", "end", "replies"),
    [
        pytest.param(FULL_DUPLEX, [b"a", b"b"], None, True, [b"ab"], id="sent back"),
        pytest.param(FULL_DUPLEX, [b"a"], b"new", True, [b"new"], id="rewritten"),
        pytest.param(FULL_DUPLEX, [b""], None, True, [b""], id="an empty body"),
        pytest.param(FULL_DUPLEX, [b""], None, False, [], id="trailers alone"),
        pytest.param(STREAMED, [b"a", b"b"], None, True, [None, None], id="chunks pass"),
        pytest.param(STREAMED, [b"a", b"b"], b"new", True, [b"new", b""], id="chunks replaced"),
        pytest.param(BUFFERED, [b"a"], b"new", True, [], id="buffered"),
        pytest.param(NONE, [], None, True, [], id="no body"),
        pytest.param(FULL_DUPLEX, [], None, True, [], id="no chunk"),
    ],
)
def test_each_mode_returns_the_body_in_its_own_way(
    mode: int,
    chunks: list[bytes],
    rewritten: bytes | None,
    end: bool,
    replies: list[bytes | None],
) -> None:
    made = Body(mode)
    for chunk in chunks:
        made.body.add(chunk, False)
    made.body.complete()
    made.body.give_back(rewritten, end)
    if mode == STREAMED:
        assert made.transport.sent == [streamed_request(each) for each in replies]
    else:
        bodies = [each for each in replies if each is not None]
        assert made.transport.sent == [
            reply for body in bodies for reply in echoed_request(body, end_of_stream=end)
        ]
    assert made.figures == (0, 0)


def half_sent_back() -> Body:
    """Return a long body of which the first of three pieces has been sent back."""
    transport = Narrow()
    transport.room = 0
    made = Body(transport=transport, limit=10**6, max_bytes=10**6)
    made.add(LONG)
    made.body.complete()
    made.body.give_back(None, True)
    return made


def test_a_long_body_goes_back_as_the_transport_has_room() -> None:
    made = half_sent_back()
    assert made.body.is_echoing
    held = [made.body.held_bytes]
    while not made.body.continue_echo():
        held.append(made.body.held_bytes)
    assert held == [MAX_BODY_CHUNK_BYTES + 1, 1, 0]
    assert made.transport.sent == list(echoed_request(LONG, end_of_stream=True))
    assert not made.body.is_echoing


@pytest.mark.parametrize("keep_echo", [True, False])
def test_a_closed_body_is_sent_back_only_with_keep_echo(keep_echo: bool) -> None:
    made = half_sent_back()
    made.body.close(keep_echo)
    assert made.figures == (0, 0)
    made.body.flush_echo()
    assert len(made.transport.sent) == (3 if keep_echo else 1)
