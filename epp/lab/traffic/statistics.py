"""Statistics of a workload: its rate, its lengths, and how much of its prompts repeats."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import ceil, fsum, sqrt
from typing import Any

from epp.lab.traffic.blocks import block_keys
from epp.lab.traffic.request import TrafficRequest
from epp.lab.traffic.workload import content_of


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Mean and percentiles of lengths in tokens."""

    mean: float
    p50: int
    p90: int
    p99: int
    max: int

    @classmethod
    def of(cls, lengths: Iterable[int]) -> "LengthStatistics":
        """Summarise at least one length; percentiles by nearest rank."""
        ordered = sorted(lengths)

        def rank(fraction: float) -> int:
            return ordered[max(0, ceil(fraction * len(ordered)) - 1)]

        mean = fsum(ordered) / len(ordered)
        return cls(mean, rank(0.5), rank(0.9), rank(0.99), ordered[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStatistics:
    """Statistics of a workload."""

    requests: int
    conversations: int
    """Requests that follow no other."""
    seconds: float | None
    """Time of the last arrival; None if requests have no times."""
    conversations_per_second: float | None
    """Conversations by that time."""
    gap_cv: float | None
    """Coefficient of variation of the gaps between arrivals: 1 for a Poisson process."""
    prompt_tokens: LengthStatistics
    output_tokens: LengthStatistics
    tokens_per_block: int
    """Block size of the next four figures; an incomplete last block counts as a block."""
    blocks: int
    """Blocks of all prompts together."""
    infinite_cache_hit_share: float
    """Fraction of the blocks that an earlier prompt had: the hit rate of one unlimited cache."""
    reused_block_share: float
    """Fraction of the different blocks that occur in more than one prompt."""
    barely_shared_share: float
    """Fraction of the requests that share at most one block with an earlier one."""
    tenants: dict[str, int]
    """Requests of each tenant; "" stands for none, here and in the next two."""
    adapters: dict[str, int]
    objectives: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def describe(
    requests: Iterable[TrafficRequest], *, tokens_per_block: int = 16
) -> TrafficStatistics:
    """Return the statistics of at least one request.

    An output counts as known text once the prompt of a following request has contained it.
    """
    times: list[float] = []
    prompts: list[int] = []
    outputs: list[int] = []
    seen: Counter[int] = Counter()
    hits = barely = conversations = blocks = 0
    labels: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for request in requests:
        if request.arrives_at is not None:
            times.append(request.arrives_at)
        conversations += request.follows is None
        prompts.append(request.prompt_tokens)
        outputs.append(request.output_tokens)
        root = content_of(request.adapter)
        keys = block_keys(request.segments, tokens_per_block, root=root, with_partial=True)
        found = 0
        for key in keys:
            if key not in seen:
                break
            found += 1
        seen.update(keys)
        hits += found
        blocks += len(keys)
        barely += found <= 1
        names = (request.tenant, request.adapter, request.objective)
        for counter, name in zip(labels, names, strict=True):
            counter[name] += 1
    seconds = times[-1] if times else None
    return TrafficStatistics(
        requests=len(prompts),
        conversations=conversations,
        seconds=seconds,
        conversations_per_second=conversations / seconds if seconds else None,
        gap_cv=_gap_cv(times),
        prompt_tokens=LengthStatistics.of(prompts),
        output_tokens=LengthStatistics.of(outputs),
        tokens_per_block=tokens_per_block,
        blocks=blocks,
        infinite_cache_hit_share=hits / blocks,
        reused_block_share=sum(count > 1 for count in seen.values()) / len(seen),
        barely_shared_share=barely / len(prompts),
        tenants=dict(labels[0].most_common()),
        adapters=dict(labels[1].most_common()),
        objectives=dict(labels[2].most_common()),
    )


def _gap_cv(times: Sequence[float]) -> float | None:
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = fsum(gaps) / len(gaps) if gaps else 0.0
    if not mean:
        return None
    return sqrt(fsum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
