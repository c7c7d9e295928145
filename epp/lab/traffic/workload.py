"""A workload: conversations in the order of their arrival, numbered as one list of requests.

A generator or a trace yields conversations. Functions of this module leave some out, draw labels,
change the times and merge several sources; each takes and returns an iterator of conversations.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import merge
from random import Random
from typing import Any

from msgspec.structs import replace

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.mix import LabelMix, Labels, RequestSlo
from epp.lab.traffic.request import Segment, TrafficRequest

BLOCK_TOKENS = 16
"""Block size of vLLM."""
Conversation = list[TrafficRequest]
"""A request that follows no other, and those that follow it or one another, at least one request.
Indexes begin at 0 in each conversation until `numbered`."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of arrival; each iteration yields the same ones.

    A request that follows another one stands behind it in the same conversation, before the next
    conversation. It has no time of its own.
    """

    conversations: Callable[[], Iterator[Conversation]]
    """Returns the conversations from the first, with the indexes of the workload."""
    concurrency: int | None = None
    """Closed loop: number of clients, each with one conversation at a time; None: the requests
    have times."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """The description that the workload was made from, for reports."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens per block in which its prompts share prefixes; for a Mooncake trace, per id."""

    def __iter__(self) -> Iterator[TrafficRequest]:
        for conversation in self.conversations():
            yield from conversation


def content_of(*parts: object) -> int:
    """Return the content of the segment named by `parts`; different parts give different texts."""
    name = "\0".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(name, digest_size=7).digest(), "big")


def numbered(conversations: Iterable[Conversation]) -> Iterator[Conversation]:
    """Give the requests the indexes of the whole workload."""
    base = 0
    for conversation in conversations:
        yield [_shifted(request, base) for request in conversation] if base else conversation
        base += len(conversation)


def _shifted(request: TrafficRequest, base: int) -> TrafficRequest:
    if request.follows is None:  # it contains no output of another one
        return replace(request, index=request.index + base)
    segments = tuple(
        Segment(each.content + base, each.tokens, is_output=True) if each.is_output else each
        for each in request.segments
    )
    return replace(
        request, index=request.index + base, follows=request.follows + base, segments=segments
    )


def labelled(
    conversations: Iterable[Conversation], mix: LabelMix, rng: Random
) -> Iterator[Conversation]:
    """Draw labels for each conversation; its requests have the same ones."""
    for conversation in conversations:
        labels = mix.draw(rng, labels_of(conversation[0]))
        yield [
            replace(
                request,
                tenant=labels.tenant,
                objective=labels.objective,
                adapter=labels.adapter,
                ttft_slo_seconds=labels.slo.ttft_seconds,
                tpot_slo_seconds=labels.slo.tpot_seconds,
            )
            for request in conversation
        ]


def labels_of(request: TrafficRequest) -> Labels:
    """Return the labels of a request."""
    return Labels(
        tenant=request.tenant,
        objective=request.objective,
        adapter=request.adapter,
        slo=RequestSlo(request.ttft_slo_seconds, request.tpot_slo_seconds),
    )


def at_times(
    conversations: Iterable[Conversation], times: Iterator[float | None]
) -> Iterator[Conversation]:
    """Let conversations arrive at `times` (None in a closed loop) instead of their own."""
    for conversation, time in zip(conversations, times, strict=False):
        yield [replace(conversation[0], arrives_at=time), *conversation[1:]]


def without_long(
    conversations: Iterable[Conversation], max_prompt_tokens: int
) -> Iterator[Conversation]:
    """Leave out longer prompts, and the rest of their conversations."""
    for conversation in conversations:
        kept = conversation
        for place, request in enumerate(conversation):
            if request.prompt_tokens > max_prompt_tokens:
                kept = conversation[:place]
                break
        if kept:
            yield kept


def skipping(conversations: Iterable[Conversation], requests: int) -> Iterator[Conversation]:
    """Leave out conversations that begin within the first `requests`; the next one arrives at 0."""
    passed = 0
    start: float | None = None
    for conversation in conversations:
        if passed < requests:
            passed += len(conversation)
            continue
        first = conversation[0]
        if first.arrives_at is None or not requests:
            yield conversation
            continue
        start = first.arrives_at if start is None else start
        yield [replace(first, arrives_at=first.arrives_at - start), *conversation[1:]]


def limited(conversations: Iterable[Conversation], requests: int) -> Iterator[Conversation]:
    """End after a number of requests."""
    left = requests
    for conversation in conversations:
        yield conversation[:left]
        left -= len(conversation)
        if left <= 0:
            return


def ending(conversations: Iterable[Conversation], seconds: float) -> Iterator[Conversation]:
    """End before the first conversation that arrives at `seconds` or later."""
    for conversation in conversations:
        arrives_at = conversation[0].arrives_at
        if arrives_at is not None and arrives_at >= seconds:
            return
        yield conversation


def scaled(conversations: Iterable[Conversation], factor: float) -> Iterator[Conversation]:
    """Multiply arrival and think times."""
    for conversation in conversations:
        yield [
            replace(
                request,
                arrives_at=None if request.arrives_at is None else request.arrives_at * factor,
                think_seconds=request.think_seconds * factor,
            )
            for request in conversation
        ]


def merged(streams: Iterable[Iterable[Conversation]]) -> Iterator[Conversation]:
    """Merge streams by arrival; of equal times, those of an earlier stream come first."""
    return merge(*streams, key=lambda conversation: conversation[0].arrives_at or 0.0)


def at_rate(workload: Workload, rate: float, seconds: float) -> Workload:
    """Return the beginning of an open-loop workload, replayed at another rate.

    It has `rate * seconds` requests, or a few more that complete a conversation. The conversations
    arrive within these seconds; think times are unchanged.

    Raises:
        TrafficError: The workload has no times, or too few requests.
    """
    wanted = max(1, round(rate * seconds))
    kept: list[Conversation] = []
    requests = 0
    for conversation in workload.conversations():
        if requests >= wanted:
            break
        kept.append(conversation)
        requests += len(conversation)
    if requests < wanted:
        raise TrafficError(
            f"the workload has {requests} requests, but {rate:g}/s for {seconds:g} s need {wanted};"
            " make the steps shorter or the workload longer"
        )
    last = kept[-1][0].arrives_at
    if last is None:
        raise TrafficError("a workload of a closed loop has no rate; give it arrival times")
    factor = requests / rate / last if last else 0.0

    def make() -> Iterator[Conversation]:
        for first, *others in kept:
            yield [replace(first, arrives_at=(first.arrives_at or 0.0) * factor), *others]

    return dataclasses.replace(workload, conversations=make)
