"""One request of a workload, as a trace or a generator describes it.

`epp load` sends it to a gateway, `epp simulate` gives it to a simulated fleet. A prompt is a
sequence of segments; two prompts share a prefix where their first segments are equal.

A request is copied with other times, indexes and labels on its way; a frozen dataclass took ten
times as long to make, and thirty times to copy.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Segment(NamedTuple):
    """A part of a prompt; equal segments are equal text."""

    content: int
    """Identifies the text; if `is_output`, the index of the request whose output it is."""
    tokens: int
    """Length in tokens, at least 1."""
    is_output: bool = False
    """Whether the text is the output of an earlier request, as in the next turn of a chat."""


class TrafficRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to send; times are seconds after the start of the workload."""

    index: int
    """Position in the workload, from 0."""
    arrives_at: float | None = None
    """When it is sent; None in a closed loop, and if it follows another request."""
    follows: int | None = None
    """Index of the request after whose end it is sent; None if its time is `arrives_at`."""
    think_seconds: float = 0.0
    """Time between the end of the request that it follows and its arrival."""
    segments: tuple[Segment, ...]
    """The prompt, at least one segment."""
    output_tokens: int
    """Tokens to generate, at least 1."""
    adapter: str = ""
    """LoRA adapter that the request names as its model; empty for the base model."""
    tenant: str = ""
    """Fairness id; empty for none."""
    objective: str = ""
    """Name of the objective, which has the priority; empty for none."""
    session: str = ""
    """Conversation that it belongs to; empty for none."""
    ttft_slo_seconds: float | None = None
    """Limit of the time to first token that the request asks for; None for none."""
    tpot_slo_seconds: float | None = None
    """Limit of the time per output token that the request asks for; None for none."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.tokens for segment in self.segments)
