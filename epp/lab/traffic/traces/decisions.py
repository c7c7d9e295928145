"""The endpoint picker's log of decisions (`epp serve --explain-file`) as a trace.

The log has the arrival time, the model and the fairness id of each request and, if the endpoint
picker saw the response, the lengths that the model server reported. Of shared prefixes it has two
lengths: how much the server found in its cache, and how much any endpoint held according to the
endpoint picker's index. So the requests of one tenant and model get one shared text: each prompt
begins with as much of it as the larger of the two lengths; the rest is unique. The replay can then
hit as much as the recorded run could, on each endpoint that has served the tenant. Which earlier
request a prefix came from, and prefixes that no cache held, cannot be known.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count, takewhile
from pathlib import Path
from random import Random

import msgspec

from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.text import BYTES_PER_TOKEN
from epp.lab.traffic.traces.rows import json_lines
from epp.lab.traffic.workload import Conversation, content_of

_UNKNOWN_OUTPUT_TOKENS = 64
"""For all requests, if no response reported usage."""


class HeldPrefix(msgspec.Struct, frozen=True, gc=False):
    """How much of the prompt the endpoints held, by the endpoint picker's index."""

    blocks: dict[str, int]
    block_size: int

    @property
    def tokens(self) -> int:
        """The most that an endpoint held."""
        return max(self.blocks.values(), default=0) * self.block_size


class DecisionRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a recorded decision that a replay needs."""

    request_id: str
    decided_at: float
    decision_seconds: float
    model: str
    body_bytes: int = 0
    fairness_id: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    prefix: HeldPrefix | None = None
    sequence: int = 0
    endpoint: str = ""
    candidates: int = 0
    first_byte_seconds: float | None = None

    @property
    def shared_tokens(self) -> int:
        """Tokens at the beginning of the prompt that a cache held."""
        held = self.prefix.tokens if self.prefix else 0
        return max(self.cached_tokens or 0, held)

    @property
    def arrived_at(self) -> float:
        """Unix time of the request's headers."""
        return self.decided_at - self.decision_seconds


def read_rows(path: Path) -> list[DecisionRow]:
    """Return the decisions in the order of arrival; a file has them in the order of their ends.

    Reads the renamed files `path.1`, `path.2` … too.

    Raises:
        TrafficError: A file cannot be read, or a line is invalid.
    """
    rows = [row for _, row in json_lines(path, DecisionRow)]
    older = (path.with_name(f"{path.name}.{number}") for number in count(1))
    for renamed in takewhile(Path.exists, older):
        rows += [row for _, row in json_lines(renamed, DecisionRow)]
    rows.sort(key=lambda row: row.arrived_at)
    return rows


def conversations(
    rows: Iterable[DecisionRow], *, name: str, base_model: str | None, seed: int = 0
) -> Iterator[Conversation]:
    """Yield a conversation of one request for each row; the first arrives at 0.

    Args:
        rows: The decisions in the order of arrival.
        name: Distinguishes the texts from those of other traces.
        base_model: Model that is no adapter; by default the most frequent one.
        seed: Of the lengths of outputs that the responses did not report: drawn from the others.
    """
    rows = list(rows)
    rng = Random(f"{seed}:{name}:outputs")  # noqa: S311 - reproducible, not secret
    outputs = [row.completion_tokens for row in rows if row.completion_tokens]
    if base_model is None and rows:
        base_model = Counter(row.model for row in rows).most_common(1)[0][0]
    for number, row in enumerate(rows):
        tokens = row.prompt_tokens or max(1, row.body_bytes // BYTES_PER_TOKEN)
        shared = min(row.shared_tokens, tokens)
        segments = []
        if shared:
            shared_text = content_of(name, "shared", row.fairness_id, row.model)
            segments.append(Segment(shared_text, shared))
        if tokens > shared:
            segments.append(Segment(content_of(name, "row", number), tokens - shared))
        yield [
            TrafficRequest(
                index=0,
                arrives_at=row.arrived_at - rows[0].arrived_at,
                segments=tuple(segments),
                output_tokens=row.completion_tokens
                or (rng.choice(outputs) if outputs else _UNKNOWN_OUTPUT_TOKENS),
                adapter="" if row.model == base_model else row.model,
                tenant=row.fairness_id,
            )
        ]
