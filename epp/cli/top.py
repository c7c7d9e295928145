"""``epp top``: the live page in a terminal."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from epp.cli.admin_options import Connect, with_client
from epp.cli.debug_pages import DebugClient, DebugPageError, NoSuchPageError
from epp.cli.running import fail
from epp.cli.top_frame import LiveState, frame

_EVENTS = "events"
_PIPED_WIDTH = 200
_OTHER_LINES = 22
"""Lines of a terminal for everything but the endpoints."""
_PIPED_ENDPOINTS = 1000


@with_client()
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one frame and exit.")] = False,
    *,
    connect: Connect,
) -> None:
    """Show the fleet, its traffic and the newest decisions, once a second.

    It is the live page at /ui/ of the metrics port, in a terminal. If the output is not a terminal,
    a frame is printed each second. Ctrl-C ends it.

    The exit status is 2 if the endpoint picker cannot be reached.
    """
    try:
        client = connect()
        _follow(client, once=once)
    except DebugPageError as error:
        fail(str(error))
    except BrokenPipeError:  # `epp top | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return


def _follow(client: DebugClient, *, once: bool) -> None:
    is_terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if is_terminal else _PIPED_WIDTH)
    state = LiveState()
    shown: Live | None = None
    try:
        for kind, data in client.events(_EVENTS):
            state.take(kind, data)
            if not (state.has_rates or state.stalled):
                continue  # the first event has no rates
            lines = max(3, console.height - _OTHER_LINES) if is_terminal else _PIPED_ENDPOINTS
            made = frame(state, _decisions(client), lines=lines)
            if once or not is_terminal:
                console.print(made)
            elif shown is None:
                shown = Live(made, console=console, screen=True, auto_refresh=False)
                shown.start(refresh=True)
            else:
                shown.update(made, refresh=True)
            if once:
                return
    finally:
        if shown is not None:
            shown.stop()


def _decisions(client: DebugClient) -> Sequence[Mapping[str, Any]] | None:
    """Return the newest decisions; None if explanations are off."""
    try:
        page = msgspec.json.decode(client.get("decisions"))
    except NoSuchPageError:
        return None
    found: Sequence[Mapping[str, Any]] = page["decisions"]
    return found if found or page["newest"] else None
