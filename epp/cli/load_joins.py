"""Joins the requests of ``epp load`` with the fleet's record and with the decisions about them."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import httpx

from epp.cli.debug_pages import TIMEOUT_SECONDS, DebugClient, DebugPageError
from epp.inputs import why_unreadable
from epp.lab.results import JoinError, Record, epp_choices, joined_records, server_accounts

_T = TypeVar("_T")

WAIT_SECONDS = 3.0
"""Time limit for the last requests to be written: a fleet writes once a second, the endpoint picker
four times."""
_POLL_SECONDS = 0.25


def join(
    records: Sequence[Record],
    *,
    fleet: str | None = None,
    decisions: str | None = None,
    notify: Callable[[str], None],
) -> list[Record]:
    """Return the records, joined with those of the fleet and the endpoint picker; blocks.

    Args:
        records: Finished requests.
        fleet: File of `epp fleet --record`, or URL of its page; None for none.
        decisions: File of `epp serve --explain-file`, or URL of the metrics port; None for none.
        notify: Called with a message about the number of joined requests.

    Raises:
        JoinError: A source cannot be read, or one of its lines is invalid.
    """
    wanted = {record.request_id for record in records if record.status and record.request_id}
    servers, choices = {}, {}
    if fleet is not None:
        servers = _awaited(wanted, lambda: server_accounts(_lines(fleet), fleet))
        notify(_found("the fleet's record", fleet, wanted, servers))
    if decisions is not None:
        if _is_url(decisions):
            choices = epp_choices(_decision_pages(decisions, wanted), decisions)
        else:
            choices = _awaited(wanted, lambda: epp_choices(_lines(decisions), decisions))
        notify(_found("the decisions", decisions, wanted, choices))
    return joined_records(records, servers=servers, choices=choices)


def fleet_bottleneck(fleet: str) -> str | None:
    """Return why the fleet itself has been too slow since its start; None if it was not; blocks.

    Args:
        fleet: File or URL as for `join`; for a file the result is None.

    Raises:
        JoinError: The page cannot be read.
    """
    if not _is_url(fleet):
        return None
    stats = json.loads(_page(str(httpx.URL(fleet).join("stats"))))
    reason = stats.get("bottleneck") if isinstance(stats, dict) else None
    return str(reason) if reason else None


def _awaited(wanted: set[str], read: Callable[[], dict[str, _T]]) -> dict[str, _T]:
    """Read until all wanted requests are found, or `WAIT_SECONDS` have passed."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        found = read()
        if wanted <= found.keys() or time.monotonic() >= end:
            return found
        time.sleep(_POLL_SECONDS)


def _lines(source: str) -> list[bytes]:
    if _is_url(source):
        return _page(source).splitlines()
    path = Path(source)
    older = takewhile(Path.exists, (path.with_name(f"{path.name}.{n}") for n in count(1)))
    try:
        # Oldest first: if several lines have the same id, the last one counts.
        texts = [each.read_bytes() for each in (*reversed(list(older)), path)]
    except OSError as error:
        raise JoinError(f"{source}: {why_unreadable(error)}") from None
    return [line for text in texts for line in _whole_lines(text)]


def _whole_lines(text: bytes) -> list[bytes]:
    """Return the lines that have been written completely."""
    return text.split(b"\n")[:-1]


def _page(url: str) -> bytes:
    try:
        response = httpx.get(url, timeout=TIMEOUT_SECONDS, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise JoinError(f"{url}: {str(error) or type(error).__name__}") from None
    if response.status_code != httpx.codes.OK:
        raise JoinError(
            f"{url}: answered {response.status_code}; give the page of the fleet's --control-port,"
            " such as http://127.0.0.1:8099/lab/requests"
        )
    return response.content


def _decision_pages(admin: str, wanted: Iterable[str]) -> Iterable[bytes]:
    try:
        client = DebugClient(admin)
    except DebugPageError as error:
        raise JoinError(f"{admin}: {error}") from None
    for request_id in wanted:
        try:
            yield client.get(f"decisions/{quote(request_id, safe='')}")
        except DebugPageError as error:
            if error.status != httpx.codes.NOT_FOUND:  # 404: this decision is missing, not the page
                raise JoinError(str(error)) from None


def _found(what: str, source: str, wanted: set[str], found: Mapping[str, object]) -> str:
    joined = len(wanted & found.keys())
    if wanted and not joined:
        return (
            f"no request is in {what}, {source}: is it of this run, and does the gateway pass on"
            " x-request-id?"
        )
    return f"{joined} of {len(wanted)} answered requests are in {what}"


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))
