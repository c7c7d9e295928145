"""Checks of the age of scraped metrics: from the settings, and as measured by a running EPP."""

from collections.abc import Iterator
from typing import Final

from epp.data_layer import DataSource, Extractor
from epp.data_layer.health_check import HealthCheck
from epp.data_layer.scrape_rest import MAX_REST_SECONDS
from epp.data_layer.staleness import THRESHOLD_INTERVALS, threshold_seconds
from epp.doctor.check import Check
from epp.doctor.deployment import Deployment, ScrapeTimes, place_of
from epp.doctor.deployment_checks import give
from epp.doctor.findings import Finding, error, note, set_to, warning
from epp.doctor.running import RunningPicker

_AGE: Final = "llm_d_epp_endpoint_metrics_age_seconds"
_INTERVAL: Final = "llm_d_epp_datalayer_scrape_interval_seconds"
_LAG: Final = "llm_d_epp_datalayer_scrape_lag_seconds"
_DURATION: Final = "llm_d_epp_datalayer_scrape_duration_seconds"
_POLL_ERRORS: Final = "llm_d_epp_datalayer_poll_errors_total"
_EXTRACT_ERRORS: Final = "llm_d_epp_datalayer_extract_errors_total"
_ENDPOINT: Final = "model_server_endpoint"

_LONG_SECONDS: Final = 1.0
"""An interval in which a server of average size starts dozens of requests."""
_LATE_SECONDS: Final = "0.05"
"""Bucket above which a scrape counts as late: one scrape interval."""
_RARE: Final = 0.01
_LONGEST_REST: Final = MAX_REST_SECONDS * 1.25
"""Longest time between two scrapes of an idle endpoint, including the jitter."""


def _settings(deployment: Deployment) -> Iterator[Finding]:
    times = deployment.times or ScrapeTimes()
    sources = () if deployment.graph is None else deployment.graph.sources
    own = [
        (each.source.name, each.source.interval_seconds)
        for each in sources
        if isinstance(each.source, DataSource)
        and any(isinstance(one, Extractor) and not one.writes for one in each.extractors)
    ]
    for name, seconds in own or [("", 0.0)]:
        path = ""
        if seconds and deployment.graph is not None:
            path = f"{place_of(deployment.graph, name)}.parameters.interval"
        yield from _of_interval(times, seconds or times.interval_seconds, path)


def _of_interval(times: ScrapeTimes, interval: float, path: str) -> Iterator[Finding]:
    """Check one interval.

    Args:
        times: The options.
        interval: The time between two scrapes.
        path: Field of the configuration that sets the interval; "" if an option sets it.
    """
    where = path or "--refresh-metrics-interval"
    found = f"metrics are scraped every {interval:g} s"
    staleness = times.metrics_staleness_seconds
    fix = set_to(path, "50ms", is_of_config=True) if path else None
    if staleness <= interval * THRESHOLD_INTERVALS:
        level = error if staleness <= interval else warning
        yield level(
            where,
            f"{found}, and --metrics-staleness-threshold is {staleness:g} s",
            "Endpoints drop out of the pool's gauges between two scrapes"
            if staleness <= interval
            else "Endpoints drop out of the pool's gauges when one or two scrapes fail",
            (f"Set {where}: 50ms" if path else f"Set {where} to at most {staleness / 4:g}s")
            + f", or --metrics-staleness-threshold to at least {4 * interval:g}s",
            fix,
        )
    elif times.is_adaptive and staleness <= _LONGEST_REST:
        yield warning(
            "--metrics-staleness-threshold",
            f"{staleness:g} s, and idle endpoints are scraped once a second",
            "Idle endpoints drop out of the pool's gauges",
            "Set --metrics-staleness-threshold to at least 2s, or --scrape=fixed",
        )
    if interval > _LONG_SECONDS:
        yield warning(
            where,
            found,
            "Scorers see the load of that time ago, corrected by this EPP's own requests alone",
            f"Set {where}: 50ms",
            fix,
        )
    if times.scoring_staleness_seconds < THRESHOLD_INTERVALS * interval:
        trusted = threshold_seconds(times.scoring_staleness_seconds, interval)
        yield note(
            "--scoring-staleness-threshold",
            f"{times.scoring_staleness_seconds:g} s counts as {trusted:g} s, three intervals",
        )


def _age(deployment: Deployment) -> Iterator[Finding]:
    picker, times = deployment.picker, deployment.times or ScrapeTimes()
    if picker is None:
        return
    intervals = _longest_intervals(picker)
    ages = {labels.get(_ENDPOINT, ""): age for labels, age in picker.series(_AGE)}
    for name, interval in intervals.items():
        age = ages.get(name)
        mend = "See server-reachable and server-metrics, and the log of the EPP"
        if age is None:
            yield error(name, "never scraped", "Its load counts as the pool's median", mend)
        elif age > max(times.metrics_staleness_seconds, THRESHOLD_INTERVALS * interval):
            why = "It is not in the pool's gauges, and scorers take the pool's median for its load"
            yield error(name, f"its metrics are {age:.1f} s old", why, mend)
        elif age > threshold_seconds(times.scoring_staleness_seconds, interval):
            why = "Scorers trust them less and less"
            yield warning(name, f"its metrics are {age:.1f} s old", why, mend)
        if interval > max(2 * times.interval_seconds, _LONGEST_REST):
            yield warning(
                name,
                f"scraped every {interval:.1f} s",
                "Its metrics page costs too much CPU, so its load is seen late",
                "Raise --max-scrape-cpu-percent, or have the server serve a shorter page",
            )


def _longest_intervals(picker: RunningPicker) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, seconds in picker.series(_INTERVAL):
        if labels.get("source") == HealthCheck.type:
            continue  # health checks run every few seconds
        name = labels.get(_ENDPOINT, "")
        found[name] = max(seconds, found.get(name, 0.0))
    return found


def _failures(deployment: Deployment) -> Iterator[Finding]:
    picker = deployment.picker
    if picker is None:
        return
    done = picker.total(f"{_DURATION}_count")
    failed = picker.total(_POLL_ERRORS)
    if failed:
        found = f"{failed:.0f} scrapes failed, and {done:.0f} did not"
        if failed > _RARE * (done + failed):
            why = "The load of endpoints is unknown in that time"
            yield warning(_POLL_ERRORS, found, why, "See server-reachable, and the log of the EPP")
        else:
            yield note(_POLL_ERRORS, found)
    if unusable := picker.total(_EXTRACT_ERRORS):
        yield warning(
            _EXTRACT_ERRORS,
            f"{unusable:.0f} pages could not be used by an extractor",
            "What it should read is missing or old",
            "See server-metrics, which names the missing metrics",
        )


def _lag(deployment: Deployment) -> Iterator[Finding]:
    picker = deployment.picker
    if picker is None:
        return
    count = picker.total(f"{_LAG}_count")
    in_time = sum(
        value for labels, value in picker.series(f"{_LAG}_bucket") if labels["le"] == _LATE_SECONDS
    )
    late = count - in_time
    if late > _RARE * count:
        yield warning(
            _LAG,
            f"{late / count:.1%} of {count:.0f} scrapes began more than 50 ms late",
            "The event loop is busy: metrics are older than they could be, and requests wait",
            "Give the EPP more CPU, or run several replicas",
        )


def _has_settings(deployment: Deployment) -> bool:
    return deployment.times is not None or deployment.is_config_given


def _is_running(deployment: Deployment) -> bool:
    return deployment.picker is not None


CHECKS = (
    Check(
        "scrape-settings",
        _settings,
        "metrics are scraped often enough for the limits of their age",
        _has_settings,
        f"{give.CONFIG}, or --refresh-metrics-interval",
    ),
    Check("scrape-age", _age, "the metrics of all endpoints are fresh", _is_running, give.EPP),
    Check("scrape-failures", _failures, "no scrape has failed", _is_running, give.EPP),
    Check("scrape-lag", _lag, "scrapes begin in time", _is_running, give.EPP),
)
