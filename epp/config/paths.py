"""Paths of fields in a document, as in messages: ``plugins[2].parameters.label``."""

import json
import re
from collections.abc import Sequence

_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
_SEGMENT = re.compile(
    r'\.?(?P<key>[A-Za-z_][\w-]*)|\[(?P<index>\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]',
    re.ASCII,
)


def join(path: str, segment: str | int) -> str:
    """Return the path of the member ``segment`` (a key or an index from 0) of ``path``."""
    if isinstance(segment, int):
        return f"{path}[{segment}]"
    if not _PLAIN_KEY.fullmatch(segment):
        return f"{path}[{json.dumps(segment, ensure_ascii=False)}]"
    return f"{path}.{segment}" if path else segment


def join_all(members: Sequence[str | int]) -> str:
    """Return the path that leads from the root through ``members``."""
    path = ""
    for segment in members:
        path = join(path, segment)
    return path


def split(path: str) -> list[str | int]:
    """Return the keys and indices of ``path``, up to the first malformed segment."""
    members: list[str | int] = []
    position = 0
    while match := _SEGMENT.match(path, position):
        position = match.end()
        if match["index"] is not None:
            members.append(int(match["index"]))
        elif match["quoted"] is not None:
            members.append(json.loads(match["quoted"], strict=False))
        else:
            members.append(match["key"])
    return members
