"""The console of `epp explain`."""

from typing import Final

from rich.console import Console

PIPED_WIDTH: Final = 200
"""Width of tables if the output is not a terminal."""


def explain_console() -> Console:
    """Return a console that prints texts of clients literally, without markup."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console
