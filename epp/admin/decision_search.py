"""Finds a decision in the current and the renamed files of decisions."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from epp.admin.decision_record import DecisionRecord
from epp.inputs import why_unreadable

_SHOWN_IDS = 5
_PLAIN = re.compile(r"[-\w./:]+", re.ASCII)


class DecisionSearchError(Exception):
    """A decision was not found; the text says why, and often what to do."""


class _Id(msgspec.Struct):
    request_id: str


def find_decision(path: Path, request_id: str) -> DecisionRecord:
    """Return the newest decision of a request; blocks.

    Args:
        path: The newest file; numbered files beside it are searched, too.
        request_id: Id of the request, or a beginning that is unique.

    Raises:
        DecisionSearchError: No decision matches, the ids of several requests do, or a file cannot
            be read.
    """
    files = _files(path)
    begun: dict[str, bytes] = {}
    for file in files:
        # The last line of a file is the newest.
        found = {name: line for line, name in _lines(file, request_id)}
        if request_id in found:
            return _decoded(file, found[request_id])
        begun = found | begun
    if len(begun) > 1:
        names = sorted(begun)
        more = f" and {len(names) - _SHOWN_IDS} more" if len(names) > _SHOWN_IDS else ""
        raise DecisionSearchError(
            f"{len(names)} request ids begin with {request_id!r}:"
            f" {', '.join(names[:_SHOWN_IDS])}{more}; give more of it"
        )
    for line in begun.values():
        return _decoded(path, line)
    shown = ", ".join(str(each) for each in files)
    raise DecisionSearchError(
        f"no decision of the request {request_id!r} is in {shown}. Requests in flight are written"
        " at their end; above --explain-rate a sample is recorded"
    )


def _files(path: Path) -> list[Path]:
    numbered = re.compile(re.escape(path.name) + r"\.(\d+)")
    try:
        others = [each for each in path.parent.iterdir() if numbered.fullmatch(each.name)]
    except OSError as error:
        raise DecisionSearchError(f"{path.parent}: {why_unreadable(error)}") from None
    others.sort(key=lambda each: int(each.name.rpartition(".")[2]))
    files = [each for each in (path, *others) if each.is_file()]
    if not files:
        raise DecisionSearchError(
            f"{path}: there is no such file; give the path of --explain-file of the endpoint picker"
        )
    return files


def _lines(file: Path, request_id: str) -> Iterator[tuple[bytes, str]]:
    """Yield the lines whose request id begins with ``request_id``, with their ids."""
    is_plain = (
        request_id.isascii() and request_id.isprintable() and not set(request_id) & set('"\\')
    )
    needle = f'"request_id":"{request_id}'.encode() if is_plain else b'"request_id":'
    try:
        with file.open("rb") as opened:
            for line in opened:
                if needle not in line:
                    continue
                try:
                    name = msgspec.json.decode(line, type=_Id).request_id
                except msgspec.MsgspecError:
                    continue  # a truncated line
                if name.startswith(request_id):
                    yield line, name
    except OSError as error:
        raise DecisionSearchError(f"{file}: {why_unreadable(error)}") from None


def _decoded(file: Path, line: bytes) -> DecisionRecord:
    try:
        return msgspec.json.decode(line, type=DecisionRecord)
    except msgspec.MsgspecError as error:
        raise DecisionSearchError(
            f"{file}: its decision is of another version of the endpoint picker: {error}"
        ) from None
