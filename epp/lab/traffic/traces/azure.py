"""Azure's LLM inference traces of 2023 and 2024: CSV with a time and two lengths.

``TIMESTAMP,ContextTokens,GeneratedTokens``; the times of 2024 have a time zone. They do not tell
which prefixes prompts share: each prompt is a text of its own.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.request import Segment, TrafficRequest
from epp.lab.traffic.traces.rows import TraceLineError, csv_rows, whole_number
from epp.lab.traffic.workload import Conversation, content_of

COLUMNS = ("timestamp", "contexttokens", "generatedtokens")
"""Names of the columns in lower case; others are ignored."""


class AzureRow(NamedTuple):
    """One request."""

    unix_seconds: float
    prompt_tokens: int
    output_tokens: int


def read_rows(path: Path) -> Iterator[AzureRow]:
    """Yield the rows of a file.

    Raises:
        TrafficError: The file cannot be read, or a line is invalid.
    """
    latest = float("-inf")
    for line, row in csv_rows(path):
        if missing := [name for name in COLUMNS if name not in row]:
            raise TrafficError(
                f"{path}: line 1: no column {missing[0]}; an Azure trace has"
                " TIMESTAMP, ContextTokens and GeneratedTokens"
            )
        try:
            time = datetime.fromisoformat(row["timestamp"].strip())
        except ValueError as error:
            raise TraceLineError(path, line, f"TIMESTAMP: {error}") from None
        seconds = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        if seconds < latest:
            raise TraceLineError(path, line, "TIMESTAMP is before the line above; sort the file")
        latest = seconds
        prompt_tokens = whole_number(path, line, row, "contexttokens")
        yield AzureRow(seconds, prompt_tokens, whole_number(path, line, row, "generatedtokens"))


def conversations(rows: Iterable[AzureRow], *, name: str) -> Iterator[Conversation]:
    """Yield a conversation of one request for each row; the first arrives at 0."""
    start: float | None = None
    for number, row in enumerate(rows):
        start = row.unix_seconds if start is None else start
        yield [
            TrafficRequest(
                index=0,
                arrives_at=row.unix_seconds - start,
                segments=(Segment(content_of(name, number), row.prompt_tokens),),
                output_tokens=row.output_tokens,
            )
        ]
