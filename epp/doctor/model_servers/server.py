"""What is known of a model server after it was asked."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from epp.doctor.clock_skew import ClockSkew
from epp.scheduling import NEVER_SCRAPED, EndpointMetrics


class Speaks(Enum):
    """What a server answers with."""

    HTTP = "HTTP"
    TLS = "HTTP over TLS"
    NEITHER = "neither HTTP nor TLS"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Extraction:
    """What became of a page that the configured plugins have read."""

    source: str
    """Name of the data source."""
    extractor: str
    """Name of the extractor; "" if the source got no page."""
    fault: str
    """Why it failed; "" if it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """A model server."""

    name: str
    address: str
    speaks: Speaks
    fault: str = ""
    """Why there was no HTTP response."""
    health: int = 0
    """Status of ``/health``; 0 for none."""
    metrics_status: int = 0
    """Status of ``/metrics``; 0 for none."""
    engine: str = ""
    """The engine whose metrics the page has; "" if it is unknown."""
    version: str = ""
    """What ``/version`` says; "" for nothing."""
    models: frozenset[str] | None = None
    """Models and adapters of ``/v1/models``; None if there is no such list."""
    cache_config: Mapping[str, str] | None = None
    """Labels of the metric with the cache's configuration; None without it."""
    skew: ClockSkew | None = None
    """Of its clock; None if its responses have no date."""
    extractions: tuple[Extraction, ...] = ()
    """One for each data source and extractor of the configuration."""
    metrics: EndpointMetrics = NEVER_SCRAPED
    """What the extractors have read."""

    @property
    def answers(self) -> bool:
        """Whether it speaks HTTP, with TLS or without."""
        return self.speaks in {Speaks.HTTP, Speaks.TLS}

    @property
    def block_size(self) -> int:
        """Tokens in a block of its cache; 0 if unknown."""
        told = (self.cache_config or {}).get("block_size", "")
        return self.metrics.cache_block_size or (int(told) if told.isdecimal() else 0)

    @property
    def blocks(self) -> int:
        """Blocks of its cache; 0 if unknown."""
        told = (self.cache_config or {}).get("num_gpu_blocks", "")
        return self.metrics.cache_blocks or (int(told) if told.isdecimal() else 0)

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether its prefix cache is on; None if unknown."""
        told = (self.cache_config or {}).get("enable_prefix_caching")
        return None if told is None else told == "True"
