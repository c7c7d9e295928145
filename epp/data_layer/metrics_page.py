"""A model server's ``/metrics`` page read for the few families that scheduling needs.

A scan, not a parse: one regular expression finds the wanted lines in the bytes, and only those are
looked into. On a vLLM page of 54 KB this takes 40 us, a full parse with prometheus-client 17 ms; at
20 pages a second from each endpoint only the first is affordable.

Which families those are is data (:class:`EngineMetrics`), one record per engine. A page may hold
several series of one family: data-parallel engines share one page, one ``engine`` label each. They
are one endpoint here, so requests and cache blocks are summed and the cache usage is the mean. (The
reference takes one of them, the newest. With one series all ways agree.)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from os.path import commonprefix

from epp.data_layer.errors import MetricsPageError
from epp.scheduling import EndpointMetrics

_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
_NO_ADAPTERS: tuple[frozenset[str], frozenset[str], int] = (frozenset(), frozenset(), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """Names under which one kind of model server publishes what scheduling needs."""

    engine: str
    """Name of the engine, for messages."""
    waiting: tuple[str, ...]
    """Gauge of queued requests; of several names the first one on the page is used."""
    running: tuple[str, ...]
    """Gauge of requests in the batch."""
    kv_cache_usage: tuple[str, ...]
    """Gauge of the used fraction of the KV cache, 0.0 to 1.0."""
    adapters: str | None = None
    """Gauge whose value is a time and whose labels tell the LoRA adapters at that time."""
    cache_config: str | None = None
    """Info family whose labels tell the geometry of the KV cache."""
    block_size_label: str = "block_size"
    blocks_label: str = "num_gpu_blocks"


VLLM = EngineMetrics(
    engine="vllm",
    waiting=("vllm:num_requests_waiting",),
    running=("vllm:num_requests_running",),
    # The second is the name in older versions; a page with both counts once.
    kv_cache_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    adapters="vllm:lora_requests_info",
    cache_config="vllm:cache_config_info",
)


class MetricsPageScanner:
    """Reads the pages of one engine."""

    def __init__(self, engine: EngineMetrics = VLLM) -> None:
        self._engine = engine
        names = [*engine.waiting, *engine.running, *engine.kv_cache_usage]
        names += [name for name in (engine.adapters, engine.cache_config) if name]
        # The newline and the names' common prefix in front: with a literal start the search takes
        # 45 us on a 54 KB page, with "^" and re.MULTILINE it takes 420.
        prefix = commonprefix(names)  # noqa: RUF071 - of characters, not of path components
        rests = "|".join(re.escape(name[len(prefix) :]) for name in names)
        self._lines = re.compile(
            rf"\n({re.escape(prefix)}(?:{rests}))(?:(\{{[^\n]*\}})[ \t]*|[ \t]+)([^\n]*)".encode()
        )
        self._waiting = tuple(name.encode() for name in engine.waiting)
        self._running = tuple(name.encode() for name in engine.running)
        self._kv_cache_usage = tuple(name.encode() for name in engine.kv_cache_usage)
        self._adapters = (engine.adapters or "").encode()
        self._cache_config = (engine.cache_config or "").encode()

    def scan(self, page: bytes, requested_at: float | None = None) -> EndpointMetrics:
        """Return what ``page`` says; ``requested_at`` is when its GET was sent.

        Raises:
            MetricsPageError: A required family (waiting, running, KV cache usage) is missing, or a
                value is not a finite number of at least 0.
        """
        series: dict[bytes, list[tuple[bytes, float]]] = {}
        for name, labels, rest in self._lines.findall(b"\n" + page):
            series.setdefault(name, []).append((labels, _number(name, rest)))
        waiting = self._required(series, self._waiting)
        running = self._required(series, self._running)
        usage = self._required(series, self._kv_cache_usage)
        active, queued, max_adapters = _newest_adapters(series.get(self._adapters))
        block_size, blocks = self._cache_geometry(series.get(self._cache_config))
        return EndpointMetrics(
            waiting_requests=round(sum(waiting)),
            running_requests=round(sum(running)),
            kv_cache_usage=min(1.0, sum(usage) / len(usage)),
            active_adapters=active,
            waiting_adapters=queued,
            max_adapters=max_adapters,
            cache_block_size=block_size,
            cache_blocks=blocks,
            requested_at=requested_at,
        )

    def _required(
        self, series: Mapping[bytes, list[tuple[bytes, float]]], names: tuple[bytes, ...]
    ) -> list[float]:
        for name in names:
            if name in series:
                return [value for _, value in series[name]]
        wanted = " or ".join(name.decode() for name in names)
        raise MetricsPageError(
            f"the page has no {wanted}: is this the /metrics of a {self._engine.engine} server?"
        )

    def _cache_geometry(self, series: list[tuple[bytes, float]] | None) -> tuple[int, int]:
        """Return block size in tokens and blocks of all engines together, 0 where unknown."""
        if not series:
            return 0, 0
        labels = [_parse_labels(labels) for labels, _ in series]
        block_size = _count(labels[0].get(self._engine.block_size_label))
        return block_size, sum(_count(one.get(self._engine.blocks_label)) for one in labels)


def _newest_adapters(
    series: list[tuple[bytes, float]] | None,
) -> tuple[frozenset[str], frozenset[str], int]:
    """Return running adapters, adapters that only wait, and the limit.

    vLLM keeps one series for every set of adapters it ever had; the value is the time it was true.
    """
    if not series:
        return _NO_ADAPTERS
    labels = _parse_labels(max(series, key=lambda one: one[1])[0])
    active = _adapter_names(labels.get("running_lora_adapters", ""))
    queued = _adapter_names(labels.get("waiting_lora_adapters", ""))
    return active, queued - active, _count(labels.get("max_lora"))


def _adapter_names(value: str) -> frozenset[str]:
    return frozenset(name for part in value.split(",") if (name := part.strip()))


def _count(value: str | None) -> int:
    """Return a label's whole number, 0 if there is none (vLLM writes ``None``)."""
    return int(value) if value and value.isascii() and value.isdigit() else 0


def _number(name: bytes, rest: bytes) -> float:
    """Return the value of a sample; a timestamp may follow it."""
    try:
        value = float(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        text = rest[:40].decode(errors="replace")
        raise MetricsPageError(f"{name.decode()}: value {text!r} is not a number") from None
    if not isfinite(value) or value < 0:
        raise MetricsPageError(f"{name.decode()}: value {value} is not a finite number >= 0")
    return value


# The labels of a server's cache configuration never change and its sets of adapters seldom do:
# parsing the 40 labels of the first costs 25 us, finding them here 1 us.
@lru_cache(maxsize=512)
def _parse_labels(text: bytes) -> Mapping[str, str]:
    labels = {}
    for name, value in _LABEL.findall(text):
        plain = _ESCAPE.sub(_unescape, value) if b"\\" in value else value
        labels[name.decode()] = plain.decode(errors="replace")
    return labels


def _unescape(match: re.Match[bytes]) -> bytes:
    character: bytes = match[1]
    return b"\n" if character == b"n" else character
