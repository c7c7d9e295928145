"""Merges the metrics pages of the workers into one.

Counters and histograms are sums. They never decrease: the last values read from a process that has
ended stay in the sum. Gauges are sums if each worker has a part (requests, connections, memory),
otherwise the greatest or smallest value.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Final

from epp.observability import number

_SUMMED: Final = frozenset(
    {
        "llm_d_epp_request_running",
        "llm_d_epp_request_held_bytes",
        "llm_d_epp_endpoint_inflight_requests",
        "llm_d_epp_extproc_streams_inflight",
        "llm_d_epp_transport_connections",
        "llm_d_epp_transport_streams",
        "llm_d_epp_transport_waiting_bytes",
        "llm_d_epp_transport_buffered_bytes",
        "llm_d_epp_transport_header_cache_bytes",
        "llm_d_epp_port_connections",
        "llm_d_epp_port_connections_limit",
        "llm_d_epp_descriptors_open",
        "llm_d_epp_descriptors_limit",
        "llm_d_epp_inflight_requests",
        "llm_d_epp_inflight_tokens",
        "llm_d_epp_prefix_indexer_bytes",
        "llm_d_epp_prefix_indexer_bytes_limit",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
    }
)
"""Gauges that are summed, because each worker has a part."""
_LEAST: Final = frozenset(
    {
        "llm_d_epp_config_last_reload_successful",
        "llm_d_epp_endpoint_metrics_age_seconds",
        "llm_d_epp_kubernetes_synced",
        "llm_d_epp_replica_connected",
        "llm_d_epp_replica_peers",
        "llm_d_epp_transport_certificate_expiry_timestamp_seconds",
        "process_start_time_seconds",
    }
)
"""Gauges that are merged by their smallest value; all others by their greatest."""
_EOF: Final = b"# EOF"


class MergedFamily:
    """One metric on a page.

    Args:
        kind: ``counter``, ``gauge``, ``histogram`` or another type.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.head: list[bytes] = []
        """Its comment lines."""
        self.samples: dict[bytes, float] = {}
        """By name and labels, in the order of the page."""

    @property
    def is_monotonic(self) -> bool:
        """Whether its values never decrease in one process."""
        return self.kind in {"counter", "histogram", "summary"}


Page = dict[bytes, MergedFamily]
"""The metrics of a page by name, in its order."""


def read_page(text: bytes) -> Page:
    """Return the metrics of a page, in Prometheus's text format or in OpenMetrics."""
    page: Page = {}
    family = MergedFamily("untyped")
    name = b""
    for line in text.split(b"\n"):
        if line.startswith(b"#"):
            parts = line.split(b" ", 3)
            if len(parts) < 4:  # noqa: PLR2004 - "# EOF"
                continue
            if parts[2] != name:
                name = parts[2]
                family = page.setdefault(name, MergedFamily("untyped"))
            family.head.append(line)
            if parts[1] == b"TYPE":
                family.kind = parts[3].decode()
        elif line:
            key, _, value = line.rpartition(b" ")
            family.samples[key] = float(value)
    return page


class MergedMetrics:
    """Adds up the pages of the workers, and remembers those of processes that have ended."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Page] = {}
        """The latest page of each running process."""
        self._ended: Page = {}
        """The sums of processes that have ended."""

    def merge(self, pages: Mapping[Hashable, Page], running: Collection[Hashable]) -> Page:
        """Return the merged page.

        Args:
            pages: Page of each process that has answered.
            running: The processes that run; those missing from ``pages`` count with their last
                page.
        """
        self._last.update(pages)
        for process in self._last.keys() - set(running):
            _add(self._ended, self._last.pop(process), only_monotonic=True)
        merged: Page = {}
        for process, page in self._last.items():
            _add(merged, page, only_monotonic=process not in pages)
        _add(merged, self._ended, only_monotonic=True)
        return merged


def _add(total: Page, page: Page, *, only_monotonic: bool) -> None:
    for name, family in page.items():
        if only_monotonic and not family.is_monotonic:
            continue
        sum_of = total.get(name)
        if sum_of is None:
            sum_of = total[name] = MergedFamily(family.kind)
            sum_of.head = family.head
            sum_of.samples = dict(family.samples)
            continue
        samples = sum_of.samples
        text = name.decode()
        adds = family.is_monotonic or text in _SUMMED
        choose = min if text in _LEAST else max
        for key, value in family.samples.items():
            known = samples.get(key)
            if known is None:
                samples[key] = value
            else:
                samples[key] = known + value if adds else choose(known, value)


def written(page: Page, *, openmetrics: bool, names: Collection[str]) -> Iterable[bytes]:
    """Yield the text of a page, metric by metric.

    Args:
        page: The metrics.
        openmetrics: Whether it ends like a page in OpenMetrics.
        names: Only samples of these names; empty for all.
    """
    for family in page.values():
        samples = [
            b"%b %b" % (key, number(value).encode())
            for key, value in family.samples.items()
            if not names or key.partition(b"{")[0].decode() in names
        ]
        if samples or not names:
            yield b"\n".join((*family.head, *samples, b""))
    if openmetrics:
        yield _EOF + b"\n"
