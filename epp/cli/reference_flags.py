"""Flags and environment variables of the Go EPP without a counterpart in ``epp serve``.

A manifest written for the Go EPP starts this endpoint picker unchanged: a flag without effect is
accepted, its value is validated as in Go, and one log line names it. A flag is refused if ignoring
it would weaken security, or if the Go EPP has withdrawn it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from epp.cli.units import duration, true_or_false
from epp.tracing import VARIABLES

log = structlog.get_logger()


class WithdrawnFlagError(Exception):
    """A flag that the Go EPP has withdrawn; the text says what replaces it."""


@dataclass(frozen=True, slots=True)
class Given:
    """A flag and its value on the command line."""

    name: str
    value: str
    reason: str
    """Why it has no effect."""
    is_missing_feature: bool
    """Whether it requests a feature that does not exist here."""


@dataclass(frozen=True, slots=True)
class ReferenceFlag:
    """A flag of the Go EPP without effect here."""

    name: str
    """Name with its leading dashes."""
    reason: str
    """Why it has no effect; shown in the log."""
    check: Callable[[str], object] = str
    """Raises ValueError for values that the Go EPP refuses, too."""
    is_boolean: bool = False
    """Whether the flag can be given without a value, which means true."""
    is_missing_feature: Callable[[str], bool] = lambda _: False
    """Returns whether a value requests a feature that does not exist here."""

    is_withdrawn: bool = False
    """Whether the Go EPP itself refuses the flag."""

    def given(self, value: str) -> Given:
        """Return the flag with ``value``.

        Raises:
            ValueError: The value is not allowed; the message names the flag.
            WithdrawnFlagError: The Go EPP has withdrawn the flag.
        """
        try:
            self.check(value)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from error
        return Given(self.name, value, self.reason, self.is_missing_feature(value))


def _boolean(name: str, reason: str, *, warns: bool = False) -> ReferenceFlag:
    return ReferenceFlag(
        name,
        reason,
        check=lambda text: true_or_false("value", text),
        is_boolean=True,
        is_missing_feature=lambda text: warns and true_or_false(name, text),
    )


def _withdrawn(name: str, field: str) -> ReferenceFlag:
    def refuse(_: str) -> None:
        raise WithdrawnFlagError(
            f"{name} was withdrawn: set engineConfigs[].{field} of the core-metrics-extractor in"
            " the configuration (--config-file)"
        )

    return ReferenceFlag(name, "", check=refuse, is_withdrawn=True)


_LOG_FORM = "the form of log lines is --log-format; the Go EPP ignores it, too"

FLAGS: Final[Mapping[str, ReferenceFlag]] = {
    flag.name: flag
    for flag in (
        _boolean("--enable-pprof", "there is no profiler on the metrics port", warns=True),
        ReferenceFlag(
            "--refresh-prometheus-metrics-interval",
            "gauges are computed when /metrics is read",
            check=duration,
        ),
        ReferenceFlag("--zap-encoder", _LOG_FORM),
        _boolean("--zap-devel", _LOG_FORM),
        ReferenceFlag("--zap-stacktrace-level", _LOG_FORM),
        ReferenceFlag("--zap-time-encoding", _LOG_FORM),
        _withdrawn("--total-queued-requests-metric", "queuedRequestsSpec"),
        _withdrawn("--total-running-requests-metric", "runningRequestsSpec"),
        _withdrawn("--kv-cache-usage-percentage-metric", "kvUsageSpec"),
        _withdrawn("--lora-info-metric", "loraSpec"),
        _withdrawn("--cache-info-metric", "cacheInfoSpec"),
    )
}
"""Flags by name."""

_VARIABLES: Final = frozenset({"PREDICTION_SERVER_URL", "TRAINING_SERVER_URL"})
_PREFIXES: Final = ("OTEL_", "LATENCY_")


def unused_variables(environment: Iterable[str], *, is_tracing: bool = False) -> list[str]:
    """Return the variables that the Go EPP reads and this endpoint picker does not.

    Args:
        environment: Names of environment variables.
        is_tracing: Whether requests are traced.
    """
    used = VARIABLES if is_tracing else frozenset[str]()
    return sorted(
        name
        for name in environment
        if (name in _VARIABLES or name.startswith(_PREFIXES)) and name not in used
    )


def log_unused(
    given: Iterable[Given], environment: Iterable[str], *, is_tracing: bool = False
) -> None:
    """Log flags and variables without effect in one line, as a warning if a feature is missing."""
    latest = {each.name: each for each in given}
    variables = unused_variables(environment, is_tracing=is_tracing)
    if not latest and not variables:
        return
    facts: dict[str, object] = {
        "flags": {f"{each.name}={each.value}": each.reason for each in latest.values()},
        "environment": variables,
    }
    if any(each.is_missing_feature for each in latest.values()):
        log.warning("flags of the Go EPP have no effect", **facts)
    else:
        log.info("flags of the Go EPP have no effect", **facts)
