"""Parameter defaults from environment variables, as in GIE before it had a configuration file."""

import os
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)


def from_environment(variable: str, default: N, *, most: float = float("inf")) -> Callable[[], N]:
    """Return a ``default_factory`` that reads ``variable``, or returns ``default`` if it is unset.

    The factory raises ValueError if the value is not a number of the type of ``default`` from 0 to
    ``most``. A value in the configuration file takes precedence over the variable.
    """

    def value() -> N:
        text = os.environ.get(variable, "").strip()
        if not text:
            return default
        kind = type(default)
        try:
            number = kind(text)
        except ValueError:
            number = kind(-1)
        if not 0 <= number <= most:
            what = "a whole number" if kind is int else "a number"
            span = "from 0 up" if most == float("inf") else f"from 0 to {most:g}"
            raise ValueError(
                f"environment variable {variable} is {text!r}; it must be {what} {span}"
            )
        return number

    return value
