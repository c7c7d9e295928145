"""The list of the newest decisions of all workers."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from epp.admin.decision_pages import PATH
from epp.admin.decision_record import DecisionsPage

__all__ = ["PATH", "merged_decisions"]

_DEFAULT_LIMIT: Final = 20


def merged_decisions(pages: Sequence[bytes], given: Mapping[str, str]) -> bytes:
    """Merge the workers' pages ``/debug/decisions`` into one.

    Args:
        pages: At least one.
        given: Parameters of the query, which the workers have accepted.
    """
    read = [msgspec.json.decode(each, type=DecisionsPage) for each in pages]
    lines = [line for each in read for line in each.decisions]
    if given.get("slowest") == "true":
        lines.sort(key=lambda each: each.duration_seconds or 0.0, reverse=True)
    else:
        lines.sort(key=lambda each: each.decided_at, reverse=True)
    kept = sum(each.kept for each in read)
    # All decisions since the oldest one that is kept.
    made = sum(each.kept / each.sampled for each in read if each.sampled)
    page = DecisionsPage(
        decisions=lines[: int(given.get("limit", _DEFAULT_LIMIT))],
        newest=max(each.newest for each in read),
        kept=kept,
        sampled=round(kept / made, 4) if made else 1.0,
    )
    return msgspec.json.encode(page) + b"\n"
