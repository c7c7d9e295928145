"""Settings of an EPP process, as given on the command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

from epp.admin import ExplainSettings
from epp.config import LoadedConfig, RollbackSettings
from epp.data_layer import DEFAULT_SHARE, DRAIN_LABEL, MAX_PAGE_BYTES
from epp.ext_proc import ExtProcSettings
from epp.inputs import MAX_PORT, Form, Option, Panel
from epp.kubernetes.source import PodSource, PoolsSource
from epp.observability import DEFAULT_PAGE_BYTES
from epp.outlier_detection import OutlierSettings
from epp.replication.settings import ReplicaSettings
from epp.tracing import TracingSettings
from epp.transport import TlsSettings, TransportSettings

Transport = Literal["http2", "grpcio"]
ScrapeMode = Literal["adaptive", "fixed"]
WorkerPorts = Literal["shared", "each"]
MAX_WORKERS: Final = 32
"""Maximum number of workers of one endpoint picker."""


def _port(purpose: str) -> Option:
    text = f"Port of {purpose}; 0 for any."
    return Option(text, panel=Panel.PORTS, metavar="PORT", min=0, max=MAX_PORT)


GrpcPort = Annotated[int, _port("ext_proc")]
GrpcHealthPort = Annotated[int, _port("gRPC health checks")]
MetricsPort = Annotated[int, _port("/metrics")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Settings of ``epp serve``."""

    config: LoadedConfig
    """The initial configuration."""
    config_file: Path | None = None
    """The file of ``config``, which is followed at run time; None if there is none."""
    allow_experimental_plugins: Annotated[
        bool,
        Option(
            "Accept plugin types that the Go EPP marks as Alpha.",
            panel=Panel.CONFIGURATION,
            form=Form.SWITCH,
        ),
    ] = False
    """Also on if the configuration sets ``extensions.allowExperimentalPlugins``."""
    config_poll_seconds: float = 0.5
    """Polling interval for the configuration and its plugin files."""
    rollback: RollbackSettings = field(default_factory=RollbackSettings)
    """When a reload is rolled back."""
    objects: Annotated[
        tuple[Path, ...],
        Option(
            "File or directory of InferenceObjectives and InferenceModelRewrites, reloaded on"
            " changes; repeatable.",
            panel=Panel.CONFIGURATION,
            metavar="PATH",
        ),
    ] = ()
    endpoints: Annotated[
        tuple[str, ...],
        Option(
            "A model server, HOST:PORT or NAME=HOST:PORT; repeatable.",
            panel=Panel.MODEL_SERVERS,
            flag="--endpoint",
            metavar="ADDRESS",
        ),
    ] = ()
    endpoints_file: Annotated[
        Path | None,
        Option(
            "Model servers, reloaded when the file changes.",
            panel=Panel.MODEL_SERVERS,
            metavar="FILE",
        ),
    ] = None
    """In the Go EPP's discovery format."""
    endpoint_dns: Annotated[
        tuple[str, ...],
        Option(
            "Model servers at the addresses of a DNS name, followed while running; without PORT the"
            " name has SRV records; repeatable.",
            panel=Panel.MODEL_SERVERS,
            metavar="NAME[:PORT]",
        ),
    ] = ()
    pods: PodSource | PoolsSource | None = None
    """Where the endpoints are in a Kubernetes cluster; None if they come from elsewhere."""
    pool_config_dir: Annotated[
        Path | None,
        Option(
            "With several pools, the directory of their configurations: NAME.yaml is that of the"
            " pool NAME, or of pools that name it in their label or annotation"
            " llm-d.ai/endpoint-picker-config. Other pools have that of --config-file.",
            panel=Panel.CONFIGURATION,
            metavar="DIR",
        ),
    ] = None
    """With several pools, the directory of their configurations."""
    elects_leader: Annotated[
        bool,
        Option(
            "With endpoints from the Kubernetes API, let one of several replicas be ready: the"
            " holder of a Lease.",
            panel=Panel.KUBERNETES,
            form=Form.BOOLEAN,
            flag="--ha-enable-leader-election",
        ),
    ] = False
    writes_object_status: Annotated[
        bool,
        Option(
            "With an InferencePool, write the conditions Accepted and ResolvedRefs of its"
            " InferenceObjectives and InferenceModelRewrites, if RBAC allows it.",
            panel=Panel.KUBERNETES,
            form=Form.BOOLEAN,
            flag="--write-object-status",
        ),
    ] = True
    tracing: TracingSettings | None = None
    """How requests are traced; None if they are not."""
    drain_label: tuple[str, str] | None = DRAIN_LABEL
    """Name and value of the label of endpoints that get no new requests; None for no such label."""
    pool_name: str = "default"
    """Name of the pool in metrics; ignored with several pools."""
    host: Annotated[str, Option("Address to listen on.", panel=Panel.PORTS, metavar="ADDRESS")] = (
        "0.0.0.0"  # noqa: S104 - a gateway on another host has to reach it
    )
    grpc_port: GrpcPort = 9002
    socket_file: Path | None = None
    """Unix socket for ext_proc, instead of ``grpc_port``."""
    workers: Annotated[
        int,
        Option(
            "Number of processes that serve as one endpoint picker on this host, see"
            " docs/workers.md. For one core each.",
            panel=Panel.PROCESS,
            metavar="N",
            min=1,
            max=MAX_WORKERS,
        ),
    ] = 1
    worker_ports: Annotated[
        WorkerPorts,
        Option(
            "With --workers: `shared`, all listen on --grpc-port, and the kernel gives each"
            " connection to one of them; `each`, the ports from --grpc-port on have one worker each"
            " (`epp envoy-config --workers`). Socket files of --listen are always one each.",
            panel=Panel.PORTS,
        ),
    ] = "shared"
    worker: int | None = None
    """Number of this process among the workers; None if there are none."""
    health_socket: Path | None = None
    """Socket file for health checks instead of ``grpc_health_port``."""
    metrics_socket: Path | None = None
    """Socket file for the pages instead of ``metrics_port``."""
    watch_relay: Path | None = None
    """Socket file where the supervisor answers lists and watches of the Kubernetes API; None to
    call the API server."""
    grpc_health_port: GrpcHealthPort = 9003
    metrics_port: MetricsPort = 9090
    max_metrics_connections: Annotated[
        int,
        Option(
            "Maximum number of connections to the metrics port; a further one closes the one that"
            " is idle longest.",
            panel=Panel.METRICS,
            metavar="N",
            min=1,
        ),
    ] = 64
    enable_admin_writes: Annotated[
        bool,
        Option(
            "Allow changing calls on the metrics port, such as `epp drain`, with the token of"
            " --admin-token-file.",
            panel=Panel.METRICS,
            form=Form.SWITCH,
        ),
    ] = False
    admin_token_file: Annotated[
        Path | None,
        Option(
            "File with the bearer token of changing calls.", panel=Panel.METRICS, metavar="FILE"
        ),
    ] = None
    metrics_endpoint_auth: bool = False
    """Ask the Kubernetes API whether a client of the metrics port may read a page."""
    metrics_tls: TlsSettings | None = None
    """TLS of the metrics port, its files followed while running; None for plain HTTP."""
    has_stream_metrics: Annotated[
        bool,
        Option(
            "Add metrics of the ext_proc streams (extproc_stream…).",
            panel=Panel.METRICS,
            form=Form.SWITCH,
            flag="--enable-grpc-stream-metrics",
        ),
    ] = False
    has_deprecated_metrics: bool = False
    """Export metrics also under the Go EPP's former names."""
    transport: Annotated[
        Transport,
        Option(
            "`http2` is our own, fast implementation, `grpcio` that of gRPC's C core.",
            panel=Panel.TRANSPORT,
        ),
    ] = "http2"
    transport_settings: TransportSettings = field(default_factory=TransportSettings)
    """Limits and timeouts; grpcio uses only the message and connection limits."""
    tls: TlsSettings | None = None
    """None for plaintext."""
    reload_certificates: Annotated[
        bool,
        Option(
            "Reload the files of --cert-path and --client-ca-file when they change.",
            panel=Panel.TLS,
            form=Form.BOOLEAN,
            flag="--enable-cert-reload",
        ),
    ] = True
    certificate_poll_seconds: float = 1.0
    """Polling interval for certificate files."""
    health_checking: Annotated[
        bool,
        Option(
            "Serve gRPC health checks on the ext_proc port, too.",
            panel=Panel.TRANSPORT,
            form=Form.SWITCH,
        ),
    ] = False
    refresh_metrics_interval_seconds: float = 0.05
    scrape: Annotated[
        ScrapeMode,
        Option(
            "`adaptive`: model servers without requests are scraped less often, down to once a"
            " second; `fixed`: all at --refresh-metrics-interval. Always fixed with"
            " --compat=reference.",
            panel=Panel.MODEL_SERVERS,
        ),
    ] = "adaptive"
    metrics_staleness_seconds: float = 2.0
    """Age at which an endpoint's metrics are excluded from the pool's gauges."""
    scoring_staleness_seconds: Annotated[
        float,
        Option(
            "Age from which scorers trust scraped values less and less.",
            panel=Panel.MODEL_SERVERS,
            form=Form.DURATION,
            flag="--scoring-staleness-threshold",
        ),
    ] = 0.2
    hedging_budget_percent: Annotated[
        int,
        Option(
            "At gateways with hedging, send at most this share of the streamed requests to a second"
            " endpoint because their response is late. 0 for none.",
            panel=Panel.OUTLIERS,
            flag="--hedging-budget",
            metavar="PERCENT",
            min=0,
            max=100,
        ),
    ] = 2
    explain: ExplainSettings = field(default_factory=ExplainSettings)
    """Which decisions are kept for explanations."""
    outliers: OutlierSettings = field(default_factory=OutlierSettings)
    """When endpoints are ejected; never with ``compat`` ``reference``."""
    replicas: ReplicaSettings = field(default_factory=ReplicaSettings)
    """Where replicas exchange their state."""
    eviction_staleness_seconds: float = 0.2
    """Part of the time that flow control waits for an eviction to show in the saturation."""
    max_scrape_cpu_percent: Annotated[
        float,
        Option(
            "Share of one CPU core for scraping all endpoints, a tenth of it for each endpoint."
            " Endpoints with costlier pages are scraped less often.",
            panel=Panel.MODEL_SERVERS,
            metavar="PERCENT",
            min=0.1,
            max=100.0,
        ),
    ] = DEFAULT_SHARE * 100
    max_scrape_page_bytes: Annotated[
        int,
        Option(
            "Maximum length of an endpoint's metrics page; a longer page is refused.",
            panel=Panel.MODEL_SERVERS,
            form=Form.SIZE,
        ),
    ] = MAX_PAGE_BYTES
    max_metrics_page_bytes: Annotated[
        int,
        Option(
            "Maximum length of our own metrics page; when it is full, unknown models and fairness"
            " ids count as `other`.",
            panel=Panel.METRICS,
            form=Form.SIZE,
        ),
    ] = DEFAULT_PAGE_BYTES
    drain_delay_seconds: float = 0.0
    """How long to accept new streams after becoming unready."""
    drain_timeout_seconds: float = 30.0
    ext_proc: ExtProcSettings = field(default_factory=ExtProcSettings)
    """Request limits and the format of responses to Envoy."""
    emit_endpoint_scores: Annotated[
        bool,
        Option(
            "Send every candidate's total score to Envoy as dynamic metadata.",
            panel=Panel.MESSAGES,
            form=Form.SWITCH,
        ),
    ] = False
    emit_decision_header: Annotated[
        bool,
        Option(
            "Set x-epp-decision (endpoint, score, margin, queue wait) and x-request-id on responses"
            " to clients.",
            panel=Panel.MESSAGES,
            form=Form.SWITCH,
        ),
    ] = False
    force_endpoint_key_file: Annotated[
        Path | None,
        Option(
            "Send a request to the endpoint that its header x-epp-force-endpoint names, if a key of"
            " this file has signed it (`epp force-endpoint`). One key of at least 32 bytes on each"
            " line, reloaded when the file changes. Off with --compat=reference.",
            panel=Panel.MESSAGES,
            metavar="FILE",
        ),
    ] = None
    ignore_subset_hint: Annotated[
        bool,
        Option(
            "Ignore the subset of endpoints in Envoy's metadata.",
            panel=Panel.MESSAGES,
            form=Form.SWITCH,
            flag="--disable-endpoint-subset-filter",
        ),
    ] = False
    seed: Annotated[
        int | None,
        Option(
            "Seed of random choices, for reproducible runs.",
            panel=Panel.CONFIGURATION,
            metavar="N",
        ),
    ] = None

    @property
    def follows_cluster(self) -> bool:
        """Whether endpoints come from the Kubernetes API.

        A discovery of the configuration comes before one pool, but not before several.
        """
        has_discovery = self.config.file.data_layer.discovery is not None
        return isinstance(self.pods, PoolsSource) or (self.pods is not None and not has_discovery)


@dataclass(frozen=True, slots=True)
class Ports:
    """Port numbers of a running EPP."""

    grpc: int
    """0 for a socket file."""
    health: int
    metrics: int
