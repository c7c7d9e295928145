"""The newest decisions of all workers are one list."""

from typing import Any

import msgspec

from epp.admin.decision_record import DecisionLine, DecisionsPage
from epp.workers.merged_decisions import merged_decisions


def line(name: str, decided_at: float, duration: float | None) -> DecisionLine:
    values: dict[str, Any] = dict.fromkeys(DecisionLine.__struct_fields__)
    values |= {"request_id": name, "decided_at": decided_at, "duration_seconds": duration}
    numbers = {"sequence": 1, "candidates": 1, "decision_seconds": 0.0}
    texts = dict.fromkeys(("model", "target_model", "endpoint", "address", "why"), "")
    return DecisionLine(**{**values, **numbers, **texts, "is_forced": False})


def page(*lines: DecisionLine, newest: int, sampled: float = 1.0) -> bytes:
    return msgspec.json.encode(
        DecisionsPage(decisions=list(lines), newest=newest, kept=len(lines), sampled=sampled)
    )


PAGES = [
    page(line("a", 5.0, 0.5), line("b", 3.0, None), newest=9),
    page(line("c", 4.0, 2.0), line("d", 1.0, 0.25), newest=7, sampled=0.5),
]


def names(given: dict[str, str]) -> list[str]:
    merged = msgspec.json.decode(merged_decisions(PAGES, given), type=DecisionsPage)
    return [each.request_id for each in merged.decisions]


def test_the_newest_come_first_up_to_the_limit() -> None:
    assert names({}) == ["a", "c", "b", "d"]
    assert names({"limit": "2"}) == ["a", "c"]


def test_the_slowest_come_first_if_asked_for() -> None:
    assert names({"slowest": "true"}) == ["c", "a", "d", "b"]


def test_the_counts_are_those_of_all() -> None:
    merged = msgspec.json.decode(merged_decisions(PAGES, {}), type=DecisionsPage)
    # 2 of 2 decisions of one, 2 of 4 of the other.
    assert (merged.newest, merged.kept, merged.sampled) == (9, 4, 0.6667)
