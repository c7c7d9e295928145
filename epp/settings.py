"""Settings of an EPP process, as given on the command line."""

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
    """Settings of ``epp serve``."""

    config: LoadedConfig
    """The initial configuration."""
    config_file: Path | None = None
    """The file of ``config``, which is followed at run time; None if there is none."""
    allow_experimental_plugins: bool = True
    """Accept plugin types that the Go EPP marks as Alpha even if the configuration does not set
    ``extensions.allowExperimentalPlugins``. ``epp serve`` has a flag for it, off by default."""
    config_poll_seconds: float = 0.5
    """Polling interval for the configuration and its plugin files."""
    rollback: RollbackSettings = field(default_factory=RollbackSettings)
    """When a reload is rolled back."""
    objects: tuple[Path, ...] = ()
    """Files and directories of objectives and rewrites, which are followed at run time."""
    endpoints: tuple[str, ...] = ()
    """Static endpoints, ``host:port`` or ``name=host:port``."""
    endpoints_file: str | None = None
    """File in the Go EPP's discovery format, which is followed at run time."""
    pool_name: str = "default"
    host: str = "0.0.0.0"  # noqa: S104 - a gateway on another host has to reach it
    grpc_port: int = 9002
    socket_file: Path | None = None
    """Unix socket for ext_proc, instead of ``grpc_port``."""
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    max_metrics_connections: int = 64
    """Open at once at the metrics port."""
    metrics_tls: TlsSettings | None = None
    """Of the metrics port, its files followed while running; None for plain HTTP."""
    has_stream_metrics: bool = False
    """Count and time the streams of the ext_proc port."""
    has_deprecated_metrics: bool = False
    """Export metrics also under the Go EPP's former names."""
    transport: Transport = "http2"
    """``http2`` is this project's transport, ``grpcio`` the gRPC C core."""
    transport_settings: TransportSettings = field(default_factory=TransportSettings)
    """Limits and timeouts; grpcio uses only the message and connection limits."""
    tls: TlsSettings | None = None
    """None for plaintext."""
    reload_certificates: bool = True
    """Reload the files of ``tls`` when they change."""
    certificate_poll_seconds: float = 1.0
    """Polling interval for certificate files."""
    health_checking: bool = False
    """Answer gRPC health checks on the ext_proc port, too."""
    refresh_metrics_interval_seconds: float = 0.05
    metrics_staleness_seconds: float = 2.0
    """Age at which an endpoint's metrics are excluded from the pool's gauges."""
    scoring_staleness_seconds: float = 0.2
    """Age at which scraped values become stale for scorers."""
    eviction_staleness_seconds: float = 0.2
    """Part of the time that flow control waits for an eviction to show in the saturation."""
    scrape_cpu_share: float = DEFAULT_SHARE
    """Share of one core for scraping all endpoints; intervals grow if that is not enough."""
    max_scrape_page_bytes: int = MAX_PAGE_BYTES
    """Longest response of a model server to a scrape."""
    max_metrics_page_bytes: int = DEFAULT_PAGE_BYTES
    """Size of the metrics page above which new names from clients are counted as ``other``."""
    drain_delay_seconds: float = 0.0
    """How long to accept new streams after becoming unready."""
    drain_timeout_seconds: float = 30.0
    ext_proc: ExtProcSettings = field(default_factory=ExtProcSettings)
    """Request limits and the format of responses to Envoy."""
    emit_endpoint_scores: bool = False
    """Send the gateway the total score of every candidate as dynamic metadata."""
    follow_subset_hint: bool = True
    """Choose only among the endpoints in the gateway's subset hint, if there is one."""
    seed: int | None = None
    """Makes every random choice reproducible."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Port numbers of a running EPP."""

    grpc: int
    """0 for a socket file."""
    health: int
    metrics: int
