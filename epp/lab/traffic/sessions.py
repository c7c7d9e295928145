"""Generated conversations: shared system prompts, users with their own context, growing histories.

One shape serves the shared-prefix workload (one turn), chats (some turns with think time) and
agents (many short calls behind a long prompt, with tool results between them).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from epp.lab.traffic.lengths import Lengths, length_at
from epp.lab.traffic.mix import Mix
from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.workload import Conversation, content_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShape:
    """The shape of generated conversations."""

    groups: int = 0
    """Number of different system prompts; 0 for none."""
    group_skew: float = 0.0
    """Popularity of the groups by Zipf's law; 0 for equal shares."""
    system_tokens: int | Lengths = 1
    """Length of a system prompt."""
    users_per_group: int = 0
    """Number of users of each group who have a context of their own; 0 for none."""
    user_tokens: int | Lengths = 1
    """Length of a user's context, which follows the system prompt."""
    turns: int | Lengths = 1
    """Requests of a conversation."""
    first_tokens: int | Lengths
    """Length of the first question."""
    later_tokens: int | Lengths
    """Length of a later question, or of a tool's result."""
    output_tokens: int | Lengths
    """Tokens to generate for each request."""
    think_seconds: float = 0.0
    """Mean time between a response and the next request, exponentially distributed."""


def sessions(
    shape: SessionShape, times: Iterator[float | None], *, name: str, seed: int
) -> Iterator[Conversation]:
    """Yield a conversation for each arrival time; None in a closed loop.

    Args:
        shape: Their shape.
        times: When they arrive.
        name: Distinguishes the texts from those of other generators.
        seed: Seed of lengths, choices and texts.
    """
    rng = Random(f"{seed}:{name}:sessions")  # noqa: S311 - reproducible, not secret
    groups = Mix.ranked(range(shape.groups), shape.group_skew) if shape.groups else None
    beginnings: dict[tuple[int, int], tuple[Segment, ...]] = {}
    for number, time in enumerate(times):
        group = groups.draw(rng) if groups else 0
        user = rng.randrange(shape.users_per_group) if shape.users_per_group else 0
        if (group, user) not in beginnings:
            beginnings[group, user] = _beginning(shape, group, user, f"{seed}:{name}")
        yield _conversation(
            shape,
            time,
            beginnings[group, user],
            rng,
            session=f"{name}{number}",
            name=f"{seed}:{name}:{number}",
        )


def _beginning(shape: SessionShape, group: int, user: int, name: str) -> tuple[Segment, ...]:
    # Drawn for each group and user alone: their order of appearance must not matter.
    segments = []
    if shape.groups:
        rng = Random(f"{name}:{group}")  # noqa: S311
        tokens = length_at(shape.system_tokens, rng.random())
        segments.append(Segment(content_of(name, "system", group), tokens))
    if shape.users_per_group:
        rng = Random(f"{name}:{group}:{user}")  # noqa: S311
        tokens = length_at(shape.user_tokens, rng.random())
        segments.append(Segment(content_of(name, "user", group, user), tokens))
    return tuple(segments)


def _conversation(
    shape: SessionShape,
    time: float | None,
    beginning: tuple[Segment, ...],
    rng: Random,
    *,
    session: str,
    name: str,
) -> Conversation:
    requests: Conversation = []
    history = beginning
    for turn in range(length_at(shape.turns, rng.random())):
        tokens = length_at(shape.later_tokens if turn else shape.first_tokens, rng.random())
        history = (*history, Segment(content_of(name, turn), tokens))
        output = length_at(shape.output_tokens, rng.random())
        think = rng.expovariate(1 / shape.think_seconds) if turn and shape.think_seconds else 0.0
        requests.append(
            TrafficRequest(
                index=turn,
                arrives_at=None if turn else time,
                follows=turn - 1 if turn else None,
                think_seconds=think,
                segments=history,
                output_tokens=output,
                session=session,
            )
        )
        history = (*history, Segment(turn, output, is_output=True))
    return requests
