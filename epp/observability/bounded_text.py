"""Makes text from clients fit to be shown in log lines, error answers and debug pages.

A model name, a header or an error that quotes one may be as long as a request and may contain
characters that a terminal obeys. Wherever such text is shown, it is cut, and characters that act on
a terminal or are invisible are escaped.
"""

import json
import re
import traceback
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

MOST_CHARS: Final = 256
"""Characters of one text; the rest is cut off."""
MOST_ANSWER_CHARS: Final = 1024
"""Characters of an error answer: its own words come on top of what it quotes."""
MOST_TRACEBACK_CHARS: Final = 8192
MOST_FRAMES: Final = 40
"""Frames of one exception's traceback, those next to the fault."""

_MOST_VALUES = 128
"""Values in one list or mapping, nested ones included."""
_MOST_INTEGER = 1 << 128
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


def cut(text: str, most_chars: int = MOST_CHARS) -> str:
    """Return the first characters of ``text``, and ``…+N`` if there are N more.

    What this function has cut is not cut again.
    """
    more = len(text) - most_chars
    if more <= 0 or (more <= _MARKER_CHARS and _is_marker(text[most_chars:])):
        return text
    return f"{text[:most_chars]}…+{more}"


def _is_marker(text: str) -> bool:
    return text.startswith("…+") and text[2:].isdecimal()


def cut_middle(text: str, most_chars: int) -> str:
    """Return the beginning and the end of ``text``, and between them how much is left out."""
    more = len(text) - most_chars
    if more <= 0:
        return text
    half = most_chars // 2
    return f"{text[:half]}\n…+{more}…\n{text[-half:]}"


def printable(text: str, most_chars: int = MOST_CHARS) -> str:
    """Return ``text`` cut and escaped.

    The result has a UTF-8 encoding whatever ``text`` is.
    """
    return escaped(cut(text, most_chars))


def escaped(text: str) -> str:
    """Return ``text`` with every character escaped that must not reach a terminal."""
    return text if text.isprintable() else _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def json_line(document: object) -> bytes:
    """Return ``document`` as JSON on one line, with no character in it that acts on a terminal.

    What is escaped is escaped as JSON does: a reader of the JSON gets the text as it was.
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
    """Return whether JSON is sure to have nothing more to escape."""
    return line.isascii() and _DELETE not in line


def escaped_json(text: str) -> bytes:
    """Return JSON on one line, with every character escaped that must not reach a terminal."""
    return _UNSAFE.sub(_json_escape, text).encode()


def _json_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def traceback_text(error: BaseException) -> str:
    """Return the traceback of ``error``; of a long one the beginning and the end."""
    try:
        text = "".join(traceback.format_exception(error, limit=-MOST_FRAMES))
    except Exception as fault:  # an exception's own methods are a plugin's
        text = f"{type(error).__name__}, which cannot be printed: {type(fault).__name__}"
    return cut_middle(text.rstrip("\n"), MOST_TRACEBACK_CHARS)


def bounded(value: object, most_chars: int = MOST_CHARS, most_values: int = _MOST_VALUES) -> object:
    """Return ``value`` as plain JSON types, with its texts cut and its values limited in number.

    Args:
        value: What is logged.
        most_chars: Most characters of each text.
        most_values: Most values in all lists and mappings together.
    """
    return _Bounder(most_chars, most_values).bounded(value)


class _Bounder:
    def __init__(self, most_chars: int, most_values: int) -> None:
        self._most_chars = most_chars
        self._left = most_values

    def bounded(self, value: object) -> object:
        self._left -= 1
        made = value
        match value:
            case str():
                made = cut(value, self._most_chars)
            case None | bool() | float():
                pass
            case int():
                if not -_MOST_INTEGER < value < _MOST_INTEGER:
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
            made[cut(text, self._most_chars)] = self.bounded(each)
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
