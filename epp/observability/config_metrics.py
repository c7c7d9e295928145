"""Metrics of the configuration: the version in use and the results of reloads."""

from hashlib import sha256
from typing import Final, Literal, get_args

from prometheus_client import CollectorRegistry

from epp.observability.metric_children import Counter, Gauge
from epp.observability.metric_families import Family

_VERSION_CHARS: Final = 12

ReloadResult = Literal["success", "failure", "rollback"]


class ConfigMetrics:
    """Registers the metrics of the configuration on a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = Family(
            "counter",
            "llm_d_epp_config_reloads_total",
            "Reloads of the configuration; result is success, failure (the one in use stayed) or"
            " rollback (requests failed, and the one before was taken back).",
            ("result",),
            Counter,
        )
        self._last = Family(
            "gauge",
            "llm_d_epp_config_last_reload_successful",
            "1 if what the configuration file says is in use, 0 if it was refused or taken back.",
            (),
            Gauge,
        )
        self._info = Family(
            "gauge",
            "llm_d_epp_config_info",
            "1 for the configuration in use; digest is the SHA-256 of its text, version differs"
            " between plugin files, too.",
            ("digest", "version"),
            Gauge,
        )
        for family in (self._reloads, self._last, self._info):
            registry.register(family)
        self._last.labels().set(1)
        for result in get_args(ReloadResult):
            self._reloads.labels(result)  # from 0 on: increase() misses a series that begins at 1

    def in_use(self, digest: str, version: str) -> None:
        """Set the configuration in use.

        Args:
            digest: Digest of its text.
            version: Identifier that changes with its text and with its plugin files.
        """
        self._info.clear()
        short = sha256(version.encode()).hexdigest()[:_VERSION_CHARS]
        self._info.labels(digest, short).set(1)

    def reloaded(self, result: ReloadResult) -> None:
        """Count a reload."""
        self._reloads.labels(result).inc()
        self._last.labels().set(result == "success")

    def unchanged(self) -> None:
        """Record that the file matches the configuration in use again."""
        self._last.labels().set(1)
