"""Join a client's records with the logs of the fleet and the endpoint picker, by request id.

`epp fleet --record` writes what its servers did, `epp serve --explain-file` what the endpoint
picker decided: JSON, a line for each request. Both may contain other requests, and several lines
of one request that was retried.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from epp.lab.results.accounts import EppChoice, ServerAccount
from epp.lab.results.record import Record

_T = TypeVar("_T")
_COMPLETED = "completed"
_EARLIER_STAGES = frozenset({"prefill", "encode"})


class JoinError(ValueError):
    """A line is invalid; the message says where and why."""


class _Served(msgspec.Struct):
    """The fields of a line of the fleet that a join needs."""

    request_id: str
    server: str
    outcome: str = _COMPLETED
    stage: str | None = None
    arrived_at: float | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    cached_tokens: int | None = None
    transferred_tokens: int = 0
    preemptions: int = 0
    rank: int | None = None

    @property
    def precedence(self) -> tuple[bool, bool]:
        """Sort key; highest for the line of the server that generated the response."""
        return self.outcome == _COMPLETED, self.stage not in _EARLIER_STAGES


class _Decided(msgspec.Struct):
    """The fields of a decision that a join needs."""

    request_id: str
    endpoint: str = ""
    score: float | None = None
    decision_seconds: float | None = None
    queued_seconds: float | None = None
    predicted_cached_tokens: int | None = None


def server_accounts(lines: Iterable[bytes], source: str) -> dict[str, ServerAccount]:
    """Return what the fleet did with each request, by request id.

    Of several lines with one id, that of the server that generated the response counts, and the
    last of equal ones.

    Args:
        lines: Lines of `epp fleet --record`.
        source: Name of the file or page, for errors.

    Raises:
        JoinError: A line is not valid.
    """
    chosen: dict[str, _Served] = {}
    for line in _decoded(lines, _Served, source):
        known = chosen.get(line.request_id)
        if line.request_id and (known is None or line.precedence >= known.precedence):
            chosen[line.request_id] = line
    return {request_id: _account(line) for request_id, line in chosen.items()}


def epp_choices(lines: Iterable[bytes], source: str) -> dict[str, EppChoice]:
    """Return what the endpoint picker decided about each request, by request id; the last counts.

    Args:
        lines: Lines of `epp serve --explain-file`.
        source: Name of the file or page, for errors.

    Raises:
        JoinError: A line is not valid.
    """
    return {
        line.request_id: EppChoice(
            endpoint=line.endpoint,
            predicted_cached_tokens=line.predicted_cached_tokens,
            score=line.score,
            decision_seconds=line.decision_seconds,
            queue_seconds=line.queued_seconds,
        )
        for line in _decoded(lines, _Decided, source)
        if line.request_id
    }


def joined_records(
    records: Iterable[Record],
    *,
    servers: Mapping[str, ServerAccount] | None = None,
    choices: Mapping[str, EppChoice] | None = None,
) -> list[Record]:
    """Return the records with the accounts that have their request ids; others are unchanged."""
    servers, choices = servers or {}, choices or {}
    return [
        msgspec.structs.replace(
            record,
            server=servers.get(record.request_id, record.server),
            epp=choices.get(record.request_id, record.epp),
        )
        for record in records
    ]


def _account(line: _Served) -> ServerAccount:
    # What another server transferred, this one did not find in its cache.
    found = None if line.cached_tokens is None else line.cached_tokens - line.transferred_tokens
    return ServerAccount(
        worker=line.server,
        arrived_at=line.arrived_at,
        admitted_at=line.admitted_at,
        first_token_at=line.first_token_at,
        finished_at=line.finished_at,
        cached_tokens=found,
        preemptions=line.preemptions,
        rank=line.rank,
    )


def _decoded(lines: Iterable[bytes], kind: type[_T], source: str) -> Iterator[_T]:
    decode = msgspec.json.Decoder(kind).decode
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise JoinError(f"{source}, line {number}: {error}") from None
