"""Describes the problems of the pool in sentences, the worst first.

The page shows them above everything else, so a sentence names the endpoints, the cause and the
effect.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from epp.admin.live.pool_reader import PoolReading
from epp.admin.live.rows import Row
from epp.outlier_detection import HealthState

ERROR: Final = "error"
WARNING: Final = "warning"
NOTE: Final = "note"

_NAMED: Final = 3
"""Maximum endpoints named in a sentence."""
_SLOW: Final = 3.0
"""An endpoint is slow if its responses take more than this many times the median."""
_FEWEST_KNOWN: Final = 3
"""Minimum endpoints for a meaningful median."""
_SLOW_SECONDS: Final = 0.25
"""An endpoint is not slow if the difference is not greater than this."""
_OLD_METRICS_SECONDS: Final = 5.0
_MANY_ERRORS: Final = 0.01
"""Minimum share of failed requests that is reported as a problem."""


class Problem(NamedTuple):
    """One sentence."""

    level: str
    text: str


def problems(
    reading: PoolReading, rows: Sequence[Row], errors: Mapping[str, int], requests: int
) -> list[Problem]:
    """Return the problems of a pool.

    Args:
        reading: Its state.
        rows: Its endpoints.
        errors: Recent errors by class.
        requests: Recent requests that were sent to an endpoint.
    """
    return [
        *_of_pool(reading, rows),
        *_ejected(rows),
        *_errors(errors, requests),
        *_slow(rows),
        *_old(rows),
        *_queued(reading),
        *_leaving(rows),
    ]


def _of_pool(reading: PoolReading, rows: Sequence[Row]) -> Iterator[Problem]:
    if not rows:
        yield Problem(ERROR, "The pool has no endpoints, so every request is refused.")
    elif reading.why_none_serves:
        yield Problem(ERROR, f"No endpoint takes requests: {reading.why_none_serves}.")
    if reading.is_panicking:
        yield Problem(
            ERROR,
            "Too many endpoints are ejected, so all of them get requests: the cause is probably"
            " shared, such as a rollout or the network.",
        )
    if reading.config.fault:
        yield Problem(
            ERROR,
            "The present configuration file is not in use, the former one is:"
            f" {reading.config.fault}",
        )


def _ejected(rows: Sequence[Row]) -> Iterator[Problem]:
    ejected = [row for row in rows if row.state == HealthState.EJECTED]
    if not ejected:
        return
    shown = [f"{row.name}: {row.reason}{_returns(row)}" for row in ejected[:_NAMED]]
    verb = "is ejected and gets" if len(ejected) == 1 else "are ejected and get"
    yield Problem(ERROR, f"{_count(ejected, rows, verb)} no requests: {_list(shown, ejected)}")


def _returns(row: Row) -> str:
    if row.returns_seconds is None:
        return ", until it responds again"
    return f", for {row.returns_seconds} s more"


def _errors(errors: Mapping[str, int], requests: int) -> Iterator[Problem]:
    failed = sum(errors.values())
    # A refused request was sent to no endpoint, so it may count in `errors` only.
    share = failed / max(requests, failed, 1)
    if failed and share >= _MANY_ERRORS:
        kinds = sorted(errors.items(), key=lambda each: -each[1])[:_NAMED]
        named = ", ".join(f"{count} {code}" for code, count in kinds)
        yield Problem(ERROR, f"{_percent(share)} of the requests failed in the last 10 s: {named}.")


def slow_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the endpoints that are much slower than the median one, the slowest first."""
    known = [row for row in rows if row.seconds is not None]
    if len(known) < _FEWEST_KNOWN:
        return []
    usual = median(row.seconds or 0.0 for row in known)
    slow = [
        row
        for row in known
        if (seconds := row.seconds or 0.0) > _SLOW * usual and seconds > usual + _SLOW_SECONDS
    ]
    return sorted(slow, key=lambda each: -(each.seconds or 0.0))


def _slow(rows: Sequence[Row]) -> Iterator[Problem]:
    slow = slow_rows(rows)
    if not slow:
        return
    usual = median(row.seconds for row in rows if row.seconds is not None)
    queue = median(row.queue for row in rows)
    for row in slow[:_NAMED]:
        equal = _percent(1 / len(rows))
        yield Problem(
            WARNING,
            f"{row.name} is slow: its requests take {_seconds(row.seconds)}, those of the median"
            f" endpoint {_seconds(usual)}. It gets {_percent(row.picked_share)} of the requests"
            f" (an equal share is {equal}); {row.queue:g} wait there, {queue:g} at the median"
            " endpoint.",
        )


def _old(rows: Sequence[Row]) -> Iterator[Problem]:
    old = [
        row
        for row in rows
        if row.state != HealthState.EJECTED
        and (row.metrics_age is None or row.metrics_age > _OLD_METRICS_SECONDS)
    ]
    if old:
        shown = [
            f"{row.name} (never read)"
            if row.metrics_age is None
            else f"{row.name} ({row.metrics_age:g} s old)"
            for row in old[:_NAMED]
        ]
        has = "has" if len(old) == 1 else "have"
        yield Problem(
            WARNING,
            f"{_count(old, rows, has)} no fresh metrics, so the load there is a guess:"
            f" {_list(shown, old)}",
        )


def _queued(reading: PoolReading) -> Iterator[Problem]:
    if reading.waiting and reading.blocked:
        verb = "request waits" if reading.waiting == 1 else "requests wait"
        yield Problem(WARNING, f"{reading.waiting} {verb} in the queue: {reading.blocked}.")


def _leaving(rows: Sequence[Row]) -> Iterator[Problem]:
    probing = [row for row in rows if row.state == HealthState.PROBING]
    if probing:
        shown = [
            f"{row.name} (gets {_percent(row.share)} of its requests)" for row in probing[:_NAMED]
        ]
        verb = "is" if len(probing) == 1 else "are"
        yield Problem(NOTE, f"{_count(probing, rows, verb)} returning: {_list(shown, probing)}")
    draining = [row for row in rows if row.draining]
    if draining:
        shown = [f"{row.name} ({row.draining})" for row in draining[:_NAMED]]
        verb = "drains and gets" if len(draining) == 1 else "drain and get"
        yield Problem(
            NOTE,
            f"{_count(draining, rows, verb)} no new requests: {_list(shown, draining)}",
        )


def _count(some: Sequence[Row], rows: Sequence[Row], verb: str) -> str:
    return f"{len(some)} of {len(rows)} endpoint{'' if len(rows) == 1 else 's'} {verb}"


def _list(shown: Sequence[str], all_rows: Sequence[Row]) -> str:
    more = len(all_rows) - len(shown)
    return f"{'; '.join(shown)}{f' and {more} more' if more else ''}."


def _seconds(seconds: float | None) -> str:
    value = seconds or 0.0
    return f"{value:.1f} s" if value >= 1.0 else f"{value * 1000:.0f} ms"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"
