"""Faults of a value, and their texts."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

TYPE_NAMES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "nothing",
    "object": "a mapping",
    "str": "a text",
}
"""Names of types in error messages, by their names in JSON and Python."""

_JSON_WORD = rf"(?:{'|'.join(TYPE_NAMES)})"
_JSON_WORDS = re.compile(rf"`({_JSON_WORD}(?: \| {_JSON_WORD})*)`")

# YAML reads an unquoted 1 or yes as a number or boolean, even where a string is expected.
_QUOTABLE = frozenset(
    f"expected a text, got {TYPE_NAMES[each]}" for each in ("bool", "float", "int")
)

_MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a value."""

    path: str
    message: str
    on_key: bool = False
    """Whether the key is wrong, rather than its value."""


def suggestion(name: str, known: Collection[str], what: str = "known") -> str:
    """Return a hint for an unknown name: the most similar known one, or a list of all."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{by_lower[near[0]]}`?"
    names = [f"`{each}`" for each in sorted(known)]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{what}: {', '.join(names[:_MAX_NAMES]) or 'none'}{more}"


def fault_of(error: Exception, path: str) -> Fault:
    """Convert an exception to a fault; msgspec's ``… - at `$.field[2]``` is added to ``path``."""
    if not isinstance(error, ValueError | OverflowError | RecursionError):
        return Fault(path, f"reading it raised {type(error).__name__}: {error}")
    message, _, where = str(error).partition(" - at `$")
    below = where.rstrip("`")
    if below and not path:
        below = below.removeprefix(".")
    if not message[:2].isupper():  # keep the case of environment variable names
        message = message[:1].lower() + message[1:]
    message = _JSON_WORDS.sub(
        lambda match: " or ".join(TYPE_NAMES[each] for each in match[1].split(" | ")), message
    )
    if message in _QUOTABLE:
        message += "; put it in quotes"
    return Fault(path + below, message)


def not_among(value: object, allowed: Collection[object]) -> str:
    """Describe a value that is none of ``allowed``."""
    expected = " or ".join(f"`{each}`" for each in allowed)
    return f"must be {expected}, not {f'`{value}`' if isinstance(value, str) else kind_of(value)}"


def kind_of(value: object) -> str:
    """Describe the type of a value in YAML terms."""
    if isinstance(value, str | Mapping):
        return "a text" if isinstance(value, str) else "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else f"`{str(value).lower()}`"
