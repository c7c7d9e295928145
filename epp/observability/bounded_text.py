"""Truncate and escape text from clients for log lines, error responses and debug pages.

A model name, a header or an error that quotes one may be as long as a request and may contain
terminal control characters. Such text is truncated, and control and invisible characters are
escaped.
"""

import json
import re
import traceback
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

MAX_CHARS: Final = 256
"""Maximum length of one string; the rest is cut off."""
MAX_RESPONSE_CHARS: Final = 1024
"""Maximum length of an error response: its own text plus what it quotes."""
MAX_TRACEBACK_CHARS: Final = 8192
MAX_FRAMES: Final = 40
"""Maximum frames of one exception's traceback; the innermost are kept."""

_MAX_VALUES = 128
"""Values in one list or mapping, nested ones included."""
_MAX_INTEGER = 1 << 128
_MARKER_CHARS = 24
"""Longest marker."""

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029"  # ends of lines and paragraphs
    "\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible
    "\ud800-\udfff"  # halves of surrogate pairs
    "]"
)
_DELETE = 0x7F
"""The one character of ASCII that JSON need not escape; a number is found five times as fast."""

_ENCODER = msgspec.json.Encoder(enc_hook=repr)


def cut(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return the first characters of ``text``, and ``…+N`` if there are N more.

    Text that is already truncated is not truncated again.
    """
    more = len(text) - max_chars
    if more <= 0 or (more <= _MARKER_CHARS and _is_marker(text[max_chars:])):
        return text
    return f"{text[:max_chars]}…+{more}"


def _is_marker(text: str) -> bool:
    return text.startswith("…+") and text[2:].isdecimal()


def cut_middle(text: str, max_chars: int) -> str:
    """Return the beginning and end of ``text``, with the number of omitted characters between."""
    more = len(text) - max_chars
    if more <= 0:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n…+{more}…\n{text[-half:]}"


def printable(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return ``text`` truncated and escaped; the result can always be encoded as UTF-8."""
    return escaped(cut(text, max_chars))


def escaped(text: str) -> str:
    """Return ``text`` with control and invisible characters escaped."""
    return text if text.isprintable() else _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def json_line(document: object) -> bytes:
    """Return ``document`` as one line of JSON, with control and invisible characters escaped.

    The escapes are JSON's, so parsing the line gives the original text.
    """
    try:
        line = _ENCODER.encode(document)
    except UnicodeEncodeError:
        # Half of a surrogate pair, as in a file name that is not UTF-8.
        text = json.dumps(document, ensure_ascii=False, default=repr)
    else:
        if is_safe(line):
            return line
        text = line.decode()
    return escaped_json(text)


def is_safe(line: bytes) -> bool:
    """Return whether a line of JSON certainly needs no more escapes (a fast check)."""
    return line.isascii() and _DELETE not in line


def escaped_json(text: str) -> bytes:
    """Return one line of JSON with control and invisible characters escaped."""
    return _UNSAFE.sub(_json_escape, text).encode()


def _json_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error``; a long one without its middle."""
    try:
        text = "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    except Exception as fault:  # the exception class may be a plugin's
        text = f"{type(error).__name__}, which cannot be printed: {type(fault).__name__}"
    return cut_middle(text.rstrip("\n"), MAX_TRACEBACK_CHARS)


def frames_text(error: BaseException) -> str:
    """Return the traceback of ``error`` without the texts of exceptions.

    These may quote the content of a request. The source lines show where they were raised.
    """
    parts: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = "".join(traceback.format_tb(current.__traceback__, limit=-MAX_FRAMES))
        head = "Traceback (most recent call last):\n" if frames else ""
        parts.append(f"{head}{frames}{type(current).__name__}")
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )
    return cut_middle("\n\nraised while handling:\n\n".join(parts), MAX_TRACEBACK_CHARS)


def bounded(value: object, max_chars: int = MAX_CHARS, max_values: int = _MAX_VALUES) -> object:
    """Return ``value`` as plain JSON types of limited size.

    Args:
        value: Any value of a log field.
        max_chars: Maximum length of each string.
        max_values: Maximum number of values in all lists and mappings together.
    """
    return _Bounder(max_chars, max_values).bounded(value)


class _Bounder:
    def __init__(self, max_chars: int, max_values: int) -> None:
        self._max_chars = max_chars
        self._left = max_values

    def bounded(self, value: object) -> object:
        self._left -= 1
        made = value
        match value:
            case str():
                made = cut(value, self._max_chars)
            case None | bool() | float():
                pass
            case int():
                if not -_MAX_INTEGER < value < _MAX_INTEGER:
                    made = f"integer of {value.bit_length()} bits"
            case bytes() | bytearray() | memoryview():
                made = f"{len(value)} bytes"
            case Mapping():
                made = self._mapping(value)
            case list() | tuple() | set() | frozenset():
                made = self._sequence(value)
            case _:
                made = self._other(value)
        return made

    def _mapping(self, value: Mapping[object, object]) -> dict[str, object]:
        made: dict[str, object] = {}
        for key, each in value.items():
            if self._left <= 0:
                break
            text = key if isinstance(key, str) else self._shown(key)
            made[cut(text, self._max_chars)] = self.bounded(each)
        if len(made) < len(value):
            made["…"] = f"+{len(value) - len(made)}"
        return made

    def _sequence(self, value: Collection[object]) -> list[object]:
        made = []
        for each in value:
            if self._left <= 0:
                break
            made.append(self.bounded(each))
        if len(made) < len(value):
            made.append(f"…+{len(value) - len(made)}")
        return made

    def _other(self, value: object) -> object:
        """Return a value of a type that has a form in JSON, or else the ``repr``."""
        try:
            plain = msgspec.to_builtins(value, enc_hook=repr)
        except Exception:  # its methods are a plugin's
            plain = self._shown(value)
        return self.bounded(plain)

    def _shown(self, value: object) -> str:
        try:
            return repr(value)
        except Exception:  # likewise
            return f"{type(value).__name__}, which cannot be printed"
