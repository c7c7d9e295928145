"""Repeated faults: the number of suppressed lines is reported even without a later line."""

from io import StringIO

import pytest
import structlog
from structlog import DropEvent
from structlog.typing import EventDict

from epp.observability.fault_limit import MAX_FAULT_LINES, FaultLimit


def test_what_was_left_out_is_reported_when_its_period_ends() -> None:
    now, written = 0.0, list[tuple[str, EventDict]]()

    def taken(_: object, method: str, event: EventDict) -> str:
        written.append((method, {**event}))
        return ""

    limit = FaultLimit([taken], clock=lambda: now)
    logger = structlog.PrintLogger(StringIO())
    for _ in range(MAX_FAULT_LINES):
        assert limit(logger, "warning", {"event": "failed"}) == {"event": "failed"}
    for _ in range(3):
        with pytest.raises(DropEvent):
            limit(logger, "warning", {"event": "failed"})
    limit.write_left_out()
    assert written == []
    now = 10.0
    limit.write_left_out()
    limit.write_left_out()
    limit.close()
    assert written == [
        ("warning", {"event": "repeated lines left out", "of": "failed", "left_out": 3})
    ]
    assert limit(logger, "warning", {"event": "failed"}) == {"event": "failed"}
