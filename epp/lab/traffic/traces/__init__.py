"""Traces: recorded requests in one of several file formats."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from epp.lab.traffic.errors import TrafficError
from epp.lab.traffic.traces import azure, decisions, mooncake, sharegpt, table
from epp.lab.traffic.traces.rows import unreadable
from epp.lab.traffic.workload import Conversation


class TraceFormat(StrEnum):
    """The format of a trace file."""

    MOONCAKE = "mooncake"
    AZURE = "azure"
    SHAREGPT = "sharegpt"
    TABLE = "table"
    DECISIONS = "decisions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A trace file and how it is read."""

    path: Path
    """The file."""
    format: TraceFormat
    """Its format."""
    block_tokens: int = mooncake.BLOCK_TOKENS
    """Tokens of a block; Mooncake only."""
    think_seconds: float = 0.0
    """Time between a response and the next question; ShareGPT only."""
    base_model: str | None = None
    """Model that is no adapter, by default the most frequent; our own log of decisions only."""
    name: str = "trace"
    """Distinguishes its texts from those of other sources."""
    seed: int = 0
    """Seed of the values that the file lacks."""

    def read(self, max_rows: int | None = None) -> Callable[[], Iterator[Conversation]]:
        """Read the rows, at most `max_rows`; return a function that yields their conversations.

        Raises:
            TrafficError: The file cannot be read, a line is invalid, or there is no request.
        """
        reader: Callable[[list[Any]], Iterator[Conversation]]
        rows: Iterable[Any]
        name, seed = self.name, self.seed
        match self.format:
            case TraceFormat.MOONCAKE:
                rows = mooncake.read_rows(self.path, self.block_tokens)
                size = self.block_tokens
                reader = lambda kept: mooncake.conversations(kept, size, name=name, seed=seed)  # noqa: E731
            case TraceFormat.AZURE:
                rows = azure.read_rows(self.path)
                reader = lambda kept: azure.conversations(kept, name=name)  # noqa: E731
            case TraceFormat.SHAREGPT:
                rows = sharegpt.read_rows(self.path)
                think = self.think_seconds
                reader = lambda kept: sharegpt.conversations(kept, name=name, think_seconds=think)  # noqa: E731
            case TraceFormat.TABLE:
                rows = table.read_rows(self.path)
                reader = lambda kept: table.conversations(kept, name=name)  # noqa: E731
            case TraceFormat.DECISIONS:
                rows = decisions.read_rows(self.path)
                model = self.base_model
                reader = lambda kept: decisions.conversations(  # noqa: E731
                    kept, name=name, base_model=model, seed=seed
                )
        kept = list(islice(rows, max_rows))
        if next(reader(kept), None) is None:
            raise TrafficError(f"{self.path}: has no request; is its format {self.format}?")
        return lambda: reader(kept)


def detect_format(path: Path) -> TraceFormat:
    """Return the format of a file, by its beginning.

    Raises:
        TrafficError: The file cannot be read, or its format is not recognised.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(1 << 20)
    except OSError as error:
        raise unreadable(path, error) from None
    first_line = beginning.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")[0]
    if first_line.startswith(b"["):
        return TraceFormat.SHAREGPT
    if first_line.startswith(b"{"):
        found = _of_document(first_line)
    else:
        found = _of_columns(
            {name.strip().lower() for name in first_line.decode(errors="replace").split(",")}
        )
    if found is None:
        known = ", ".join(TraceFormat)
        raise TrafficError(f"{path}: its format is not recognised; name it, one of {known}")
    return found


def _of_document(line: bytes) -> TraceFormat | None:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return TraceFormat.SHAREGPT if b'"conversations"' in line or b'"messages"' in line else None
    for name, found in (
        ("input_length", TraceFormat.MOONCAKE),
        ("decided_at", TraceFormat.DECISIONS),
        ("conversations", TraceFormat.SHAREGPT),
        ("messages", TraceFormat.SHAREGPT),
        ("prompt_tokens", TraceFormat.TABLE),
    ):
        if name in fields:
            return found
    return None


def _of_columns(names: set[str]) -> TraceFormat | None:
    if names.issuperset(azure.COLUMNS):
        return TraceFormat.AZURE
    return TraceFormat.TABLE if "prompt_tokens" in names else None


__all__ = ["Trace", "TraceFormat", "detect_format"]
