"""Records made by hand."""

from typing import Any

from epp.lab.results import Record


def make_record(index: int = 0, **fields: Any) -> Record:
    base: dict[str, Any] = {"scheduled_at": 0.0, "started_at": 0.0, "finished_at": 1.0}
    base |= {"status": 200, "served_by": "a"}
    return Record(index=index, **base | fields)
