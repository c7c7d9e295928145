"""Options that take ``NAME=VALUE``."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from math import inf

from epp.cli.running import from_flag
from epp.cli.units import count, duration, quantity


def name_and_value(flag: str, text: str, defaults: Mapping[str, float | None]) -> tuple[str, float]:
    """Parse ``NAME=VALUE``.

    Names ending in ``_seconds`` take a duration (5m), or ``off`` if the default is infinite. Names
    ending in ``_bytes`` take a quantity (4GiB). Other names take ``true`` or ``false`` if the
    default is a boolean, otherwise an integer.

    Args:
        flag: The option.
        text: Its value.
        defaults: Defaults by known name, in the order in which messages list them.

    Raises:
        ValueError: The name is unknown or the value invalid; the message names the flag.
    """
    given = f"{flag} {text}"
    name, separator, value = text.partition("=")
    if name not in defaults and (close := get_close_matches(name, defaults, n=1)):
        raise ValueError(f"{given}: did you mean {close[0]}?")
    if name not in defaults or not separator:
        raise ValueError(f"{given}: give NAME=VALUE with one of {', '.join(defaults)}")
    return name, from_flag(given, _parser(name, defaults[name]), value)


def _parser(name: str, default: float | None) -> Callable[[str], float]:
    if name.endswith("_seconds"):
        return _duration_or_off if default == inf else duration
    if name.endswith("_bytes"):
        return quantity
    return _boolean if isinstance(default, bool) else count


def _duration_or_off(text: str) -> float:
    return inf if text == "off" else duration(text)


def _boolean(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("must be true or false")
    return text == "true"
