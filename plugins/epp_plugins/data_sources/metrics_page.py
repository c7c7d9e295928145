"""Reads the few metric families that scheduling needs from a model server's ``/metrics`` page.

The page is scanned, not parsed: one regular expression finds the wanted lines, and only those are
parsed. On a vLLM page of 54 KB this takes 40 us; a full parse with prometheus-client takes 17 ms,
too much for 20 pages a second from each endpoint. A long page is read in parts, and its cost is
bounded: families of more than 2000 series are refused.

:class:`EngineMetrics` lists the families of one engine. A page can have several series of one
family: data-parallel engines share a page, each with its own ``engine`` label. They are one
endpoint, so requests and cache blocks are summed, and the cache usage is averaged. (The Go EPP
uses only the newest series. With one series the results are the same.)
"""

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Final

from xxhash import xxh3_64_intdigest

from epp.data_layer.plugins import PageError, PageTooLargeError
from epp.scheduling import NEVER_SCRAPED, EndpointMetrics
from epp_plugins.data_sources.metric_spec import MetricSpec, parse_labels
from epp_plugins.data_sources.page_parts import PART_BYTES, parts

Series = Sequence[tuple[bytes, bytes]]
"""Labels and value of each series, as text of the page."""

MAX_SERIES: Final = 2000
"""Maximum series of one family on a page; each engine of a model server has one."""
_PARSED_BYTES: Final = 4 * 1024
"""Bytes of labels parsed in one step; at least one series."""
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
_NAMESPACE = re.compile(rb"[a-zA-Z0-9]*[:_]?")
LARGEST: Final = 1e18
"""Larger values are invalid: no model server has such counts, and their sum may be infinite."""
_UNKNOWN_USAGE: Final = 0.5
"""KV cache usage of an endpoint whose pages have never included it: neither empty nor full."""
_NO_ADAPTERS: tuple[frozenset[str], frozenset[str], int] = (frozenset(), frozenset(), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """Names of the metrics of one engine.

    A value without a name is not read, and is 0.
    """

    engine: str
    """Name of the engine, for messages."""
    waiting: tuple[MetricSpec, ...] = ()
    """Gauge of queued requests; of several names the first one on the page is used."""
    running: tuple[MetricSpec, ...] = ()
    """Gauge of running requests."""
    kv_cache_usage: tuple[MetricSpec, ...] = ()
    """Gauge of the used fraction of the KV cache, 0.0 to 1.0."""
    adapters: MetricSpec | None = None
    """Gauge whose value is a timestamp and whose labels are the LoRA adapters at that time."""
    cache_config: MetricSpec | None = None
    """Info family whose labels have the size of the KV cache."""
    block_size_label: str = "block_size"
    blocks_label: str = "num_gpu_blocks"
    block_size: MetricSpec | None = None
    """Gauge of the tokens per block, if there is no info family."""
    blocks: MetricSpec | None = None
    """Gauge of the number of blocks of the KV cache, if there is no info family."""
    prompt_tokens: MetricSpec | None = None
    """Counter of the tokens of all prompts."""
    prompts: MetricSpec | None = None
    """Counter of prompts, incremented together with ``prompt_tokens``."""
    custom: tuple[MetricSpec, ...] = ()
    """Further values, which are not part of ``EndpointMetrics``."""

    def specs(self) -> Iterable[MetricSpec]:
        """Yield all metrics that are read."""
        yield from self.own_specs()
        yield from self.custom

    def own_specs(self) -> Iterable[MetricSpec]:
        """Yield all metrics that are read, except custom ones."""
        yield from (*self.waiting, *self.running, *self.kv_cache_usage)
        single = (
            self.adapters,
            self.cache_config,
            self.block_size,
            self.blocks,
            self.prompt_tokens,
            self.prompts,
        )
        yield from (spec for spec in single if spec is not None)


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """The values of a page."""

    metrics: EndpointMetrics
    custom: Sequence[float | None]
    """Values in the order of ``EngineMetrics.custom``; None if missing or not a number."""
    missing: Sequence[str]
    """Load and cache metrics of the engine that are not on the page."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The series found on a page."""

    series: Mapping[bytes, Series]
    """Series by family."""
    labels: Mapping[bytes, Mapping[str, str]]
    """Parsed labels by their text, for families whose labels are needed."""

    def of(self, spec: MetricSpec | None) -> Series:
        """Return the series that ``spec`` includes."""
        if spec is None:
            return ()
        found = self.series.get(spec.family, ())
        if not spec.labels:
            return found
        return [one for one in found if spec.matches(self.labels[one[0]])]


class MetricsPageScanner:
    """Reads the pages of one engine."""

    def __init__(self, engine: EngineMetrics) -> None:
        self._engine = engine
        self._labelled = {spec.family for spec in engine.specs() if spec.labels}
        """Families whose labels are needed."""
        if engine.cache_config is not None:
            self._labelled.add(engine.cache_config.family)
        found = _patterns({spec.family for spec in engine.specs()})
        self._starts = tuple(start for start, _ in found)
        self._patterns = tuple(pattern for _, pattern in found)

    def digest(self, page: bytes) -> int:
        """Return a hash of the part of a page that :meth:`scan` reads; 54 KB take 4 us.

        The part begins at the first line that may be read. The page of a vLLM server begins with
        its memory and CPU time, which change even while the server is idle.
        """
        begin = len(page)
        for start in self._starts:
            if page.startswith(start[1:]):
                begin = 0
                break
            found = page.find(start, 0, begin)
            if found >= 0:
                begin = found
        return xxh3_64_intdigest(memoryview(page)[begin:])

    def scan(
        self,
        page: bytes,
        requested_at: float | None = None,
        before: EndpointMetrics = NEVER_SCRAPED,
    ) -> ScannedPage:
        """Return the values of a page.

        Args:
            page: The page.
            requested_at: When its GET was sent.
            before: The values of the endpoint's last page, used in place of missing ones.

        Raises:
            PageError: The page has none of the families that the engine always has (waiting,
                running, KV cache usage), or a value is not a finite number (of at least 0).
        """
        steps = self.steps(page, requested_at, before)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                scanned: ScannedPage = end.value
                return scanned

    def steps(
        self,
        page: bytes,
        requested_at: float | None = None,
        before: EndpointMetrics = NEVER_SCRAPED,
    ) -> Generator[None, None, ScannedPage]:
        """Do the same as :meth:`scan`, in steps of at most a few milliseconds.

        Raises:
            PageError: As :meth:`scan`.
            PageTooLargeError: A family has too many series.
        """
        series: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for text in parts(page):
            for pattern in self._patterns:
                for family, labels, rest in pattern.findall(text):
                    series.setdefault(family, []).append((labels, rest))
            self._limit(series)
            if len(page) > PART_BYTES:
                yield
        parsed: dict[bytes, Mapping[str, str]] = {}
        parsed_bytes = 0
        for family in self._labelled:
            for labels, _ in series.get(family, ()):
                parsed[labels] = parse_labels(labels)
                parsed_bytes += len(labels)
                if parsed_bytes > _PARSED_BYTES:
                    parsed_bytes = 0
                    yield
        return self._read(_Found(series, parsed), requested_at, before)

    def _limit(self, series: Mapping[bytes, list[tuple[bytes, bytes]]]) -> None:
        adapters = self._engine.adapters
        for family, found in series.items():
            if len(found) <= MAX_SERIES:
                continue
            if adapters is None or family != adapters.family or adapters.labels:
                raise PageTooLargeError(
                    f"the page has more than {MAX_SERIES} series of {family.decode()}: have the"
                    " server publish one for each engine"
                )
            # A server keeps a series for every past set of adapters; only the newest counts.
            found[:] = [_newest(found, adapters)]

    def _read(
        self, page: _Found, requested_at: float | None, before: EndpointMetrics
    ) -> ScannedPage:
        engine = self._engine
        families = (engine.waiting, engine.running, engine.kv_cache_usage)
        waiting, running, usage = [_values(page, names) for names in families]
        missing: Sequence[str] = ()
        has_load = True
        if waiting is None or running is None or usage is None:
            missing = self._missing(page, families)
            has_load = waiting is not None and running is not None
            if not has_load:
                waiting, running = [before.waiting_requests], [before.running_requests]
                requested_at = before.requested_at
            if usage is None:
                usage = [_UNKNOWN_USAGE if before is NEVER_SCRAPED else before.kv_cache_usage]
        active, queued, max_adapters = _newest_adapters(page, engine.adapters)
        block_size, blocks = self._cache_geometry(page)
        metrics = EndpointMetrics(
            waiting_requests=round(sum(waiting or ())),
            running_requests=round(sum(running or ())),
            kv_cache_usage=min(1.0, sum(usage) / len(usage)) if usage else 0.0,
            active_adapters=active,
            waiting_adapters=queued,
            max_adapters=max_adapters,
            cache_block_size=block_size,
            cache_blocks=blocks,
            prompt_tokens=_total(page, engine.prompt_tokens),
            prompts=_total(page, engine.prompts),
            requested_at=requested_at,
            has_load=has_load,
        )
        return ScannedPage(metrics, [_custom(page, spec) for spec in engine.custom], missing)

    def _missing(self, page: _Found, families: Iterable[Sequence[MetricSpec]]) -> Sequence[str]:
        """Return the families that are not on a page.

        Raises:
            PageError: The page has none of them.
        """
        named = [names for names in families if names]
        lost = [names for names in named if not any(page.of(spec) for spec in names)]
        missing = [" or ".join(spec.text for spec in names) for names in lost]
        if len(lost) == len(named):
            raise PageError(
                f"the page has no {', '.join(missing)}: is this the /metrics of a"
                f" {self._engine.engine} server?"
            )
        return missing

    def _cache_geometry(self, page: _Found) -> tuple[int, int]:
        """Return block size in tokens and blocks of all engines together, 0 where unknown."""
        engine = self._engine
        block_size = blocks = 0
        if info := page.of(engine.cache_config):
            labels = [page.labels[text] for text, _ in info]
            block_size = _count(labels[0].get(engine.block_size_label))
            blocks = sum(_count(one.get(engine.blocks_label)) for one in labels)
        if engine.block_size and (gauge := page.of(engine.block_size)):
            block_size = round(_count_of(engine.block_size, gauge[0][1]))
        if engine.blocks and (gauge := page.of(engine.blocks)):
            blocks = round(sum(_count_of(engine.blocks, rest) for _, rest in gauge))
        return block_size, blocks


def _patterns(families: Iterable[bytes]) -> list[tuple[bytes, re.Pattern[bytes]]]:
    """Return patterns that find the name, the labels and the rest of the lines of ``families``.

    Each pattern is preceded by its literal start: text that does not contain it cannot match.
    """
    groups: dict[bytes, list[bytes]] = {}
    for family in sorted(families):
        namespace = _NAMESPACE.match(family)
        groups.setdefault(namespace[0] if namespace else b"", []).append(family)
    patterns = []
    for names in groups.values():
        # The newline and the names' common prefix in front: with a literal start the search takes
        # 45 us on a 54 KB page, with "^" and re.MULTILINE it takes 420.
        prefix = commonprefix(names) or b""  # noqa: RUF071 - of characters, not of path components
        rests = b"|".join(re.escape(name[len(prefix) :]) for name in names)
        pattern = re.compile(
            rb"\n(%b(?:%b))(?:(\{[^\n]*\})[ \t]*|[ \t]+)([^\n]*)" % (re.escape(prefix), rests)
        )
        patterns.append((b"\n" + prefix, pattern))
    return patterns


def _values(page: _Found, names: Sequence[MetricSpec]) -> list[float] | None:
    """Return the values of the first of ``names`` on the page; None if none of them is there."""
    for spec in names:
        if found := page.of(spec):
            return [_count_of(spec, rest) for _, rest in found]
    return None if names else []


def _total(page: _Found, spec: MetricSpec | None) -> int:
    """Return the sum of an optional counter; 0 if it is missing, invalid or negative."""
    value = _custom(page, spec) if spec is not None else None
    return round(value) if value is not None and value > 0 else 0


def _custom(page: _Found, spec: MetricSpec) -> float | None:
    found = page.of(spec)
    try:
        return sum(_number(spec, rest) for _, rest in found) if found else None
    except PageError:
        return None  # a ratio without samples is NaN, which must not invalidate the page


def _newest_adapters(
    page: _Found, spec: MetricSpec | None
) -> tuple[frozenset[str], frozenset[str], int]:
    """Return running adapters, adapters that only wait, and the limit.

    vLLM keeps one series for every set of adapters that it has had; its value is the time at which
    it was current.
    """
    if spec is None or not (found := page.of(spec)):
        return _NO_ADAPTERS
    labels = parse_labels(_newest(found, spec)[0])
    active = _adapter_names(labels.get("running_lora_adapters", ""))
    queued = _adapter_names(labels.get("waiting_lora_adapters", ""))
    return active, queued - active, _count(labels.get("max_lora"))


def _newest(found: Series, spec: MetricSpec) -> tuple[bytes, bytes]:
    return max(found, key=lambda one: _count_of(spec, one[1]))


def _adapter_names(value: str) -> frozenset[str]:
    return frozenset(name for part in value.split(",") if (name := part.strip()))


def _count(value: str | None) -> int:
    """Return a label's value as an integer; 0 if it is not one (vLLM writes ``None``)."""
    return int(value) if value and _WHOLE_NUMBER.fullmatch(value) else 0


def _count_of(spec: MetricSpec, rest: bytes) -> float:
    value = _number(spec, rest)
    if value < 0:
        raise PageError(f"{spec.text}: value {value} is less than 0")
    return value


def _number(spec: MetricSpec, rest: bytes) -> float:
    """Return the value of a sample; a timestamp may follow it."""
    try:
        value = float(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        text = rest[:40].decode(errors="replace")
        raise PageError(f"{spec.text}: value {text!r} is not a number") from None
    if not -LARGEST <= value <= LARGEST:  # also true for NaN
        raise PageError(f"{spec.text}: value {value} is not a finite number")
    return value
