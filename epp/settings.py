"""What one EPP process is told on its command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from epp.config import LoadedConfig, RollbackSettings
from epp.data_layer import DEFAULT_SHARE, MAX_PAGE_BYTES
from epp.ext_proc import ExtProcSettings
from epp.observability import DEFAULT_PAGE_BYTES
from epp.transport import TlsSettings, TransportSettings

Transport = Literal["http2", "grpcio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What to serve, and how."""

    config: LoadedConfig
    """What to begin with."""
    config_file: Path | None = None
    """Where ``config`` is from, followed while running; None if it is from no file."""
    allow_experimental_plugins: bool = True
    """Take configurations with plugin types that the reference calls Alpha, also where they do not
    say so themselves (``extensions.allowExperimentalPlugins``). ``epp serve`` does when told to."""
    config_poll_seconds: float = 0.5
    """Time between two looks at the configuration and its plugin files."""
    rollback: RollbackSettings = field(default_factory=RollbackSettings)
    """When a reload is taken back."""
    objects: tuple[Path, ...] = ()
    """Files and directories with objectives and rewrites, followed while running."""
    endpoints: tuple[str, ...] = ()
    """Static endpoints, ``host:port`` or ``name=host:port``."""
    endpoints_file: str | None = None
    """File in the reference's discovery format, followed while running."""
    pool_name: str = "default"
    host: str = "0.0.0.0"  # noqa: S104 - a gateway on another host has to reach it
    grpc_port: int = 9002
    socket_file: Path | None = None
    """Of ext_proc, in place of ``grpc_port``."""
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    max_metrics_connections: int = 64
    """Open at once at the metrics port."""
    metrics_tls: TlsSettings | None = None
    """Of the metrics port, its files followed while running; None for plain HTTP."""
    has_stream_metrics: bool = False
    """Count and time the streams of the ext_proc port."""
    has_deprecated_metrics: bool = False
    """Export metrics also under the names that the reference had for them before."""
    transport: Transport = "http2"
    """``http2`` is our own, ``grpcio`` the C core's."""
    transport_settings: TransportSettings = field(default_factory=TransportSettings)
    """Limits and timeouts; grpcio takes the lengths of messages from it, and nothing else."""
    tls: TlsSettings | None = None
    """None for plaintext."""
    reload_certificates: bool = True
    """Follow the files of ``tls`` while running."""
    certificate_poll_seconds: float = 1.0
    """Time between two looks at them."""
    health_checking: bool = False
    """Answer gRPC health checks on the ext_proc port, too."""
    refresh_metrics_interval_seconds: float = 0.05
    metrics_staleness_seconds: float = 2.0
    """Age from which an endpoint's page does not count for the pool's gauges."""
    scoring_staleness_seconds: float = 0.2
    """Age at which scraped values begin to fade for scorers."""
    eviction_staleness_seconds: float = 0.2
    """Part of the time that flow control waits for an eviction to show in the saturation."""
    scrape_cpu_share: float = DEFAULT_SHARE
    """Of one core, that scraping all endpoints may take; beyond it they are asked less often."""
    max_scrape_page_bytes: int = MAX_PAGE_BYTES
    """Longest page that a model server may answer a scrape with."""
    max_metrics_page_bytes: int = DEFAULT_PAGE_BYTES
    """Length of the metrics page from where names from clients count as ``other``."""
    drain_delay_seconds: float = 0.0
    """How long new streams are still served when readiness has gone off."""
    drain_timeout_seconds: float = 30.0
    ext_proc: ExtProcSettings = field(default_factory=ExtProcSettings)
    """Limits of requests, and the form of the answers to Envoy."""
    emit_endpoint_scores: bool = False
    """Tell the gateway the total score of every candidate, as dynamic metadata."""
    follow_subset_hint: bool = True
    """Choose among the endpoints that the gateway names in its metadata, if it does."""
    seed: int | None = None
    """Makes every random choice repeatable."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a started EPP listens."""

    grpc: int
    """0 for a socket file."""
    health: int
    metrics: int
