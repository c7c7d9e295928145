"""The record of a model server's responses."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from epp.doctor.clock_skew import ClockSkew
from epp.scheduling import NEVER_SCRAPED, EndpointMetrics


class Speaks(Enum):
    """Protocol of a server."""

    HTTP = "HTTP"
    TLS = "HTTP over TLS"
    NEITHER = "neither HTTP nor TLS"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Extraction:
    """Result of reading a page with one of the configured plugins."""

    source: str
    """Name of the data source."""
    extractor: str
    """Name of the extractor; "" if the source got no page."""
    fault: str
    """Why reading failed; "" if it succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """A model server and its responses."""

    name: str
    address: str
    speaks: Speaks
    fault: str = ""
    """Why there was no HTTP response; "" if there was one."""
    health: int = 0
    """Status of ``/health``; 0 for none."""
    metrics_status: int = 0
    """Status of ``/metrics``; 0 for none."""
    engine: str = ""
    """The engine whose metrics are on the page; "" if it is unknown."""
    version: str = ""
    """Version that ``/version`` reports; "" if it reports none."""
    models: frozenset[str] | None = None
    """Models and adapters in ``/v1/models``; None if there is no such list."""
    cache_config: Mapping[str, str] | None = None
    """Labels of the metric with the cache's configuration; None without it."""
    skew: ClockSkew | None = None
    """Skew of its clock; None if its responses have no date."""
    extractions: tuple[Extraction, ...] = ()
    """Results by data source and extractor of the configuration."""
    metrics: EndpointMetrics = NEVER_SCRAPED
    """The extracted metrics."""

    @property
    def responds(self) -> bool:
        """Whether it speaks HTTP, with or without TLS."""
        return self.speaks in {Speaks.HTTP, Speaks.TLS}

    @property
    def block_size(self) -> int:
        """Tokens per block of its cache; 0 if unknown."""
        reported = (self.cache_config or {}).get("block_size", "")
        return self.metrics.cache_block_size or (int(reported) if reported.isdecimal() else 0)

    @property
    def blocks(self) -> int:
        """Number of blocks of its cache; 0 if unknown."""
        reported = (self.cache_config or {}).get("num_gpu_blocks", "")
        return self.metrics.cache_blocks or (int(reported) if reported.isdecimal() else 0)

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether its prefix cache is on; None if unknown."""
        reported = (self.cache_config or {}).get("enable_prefix_caching")
        return None if reported is None else reported == "True"
