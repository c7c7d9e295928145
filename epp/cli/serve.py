"""``epp serve``: run the endpoint picker; accepts the flags of the Go EPP."""

import asyncio
import json
import os
from functools import partial
from pathlib import Path

import structlog
import typer

from epp.admin import ExplainSettings
from epp.app import App, Ports, ServeSettings
from epp.cli.config_options import ConfigFile, ConfigText, load_config
from epp.cli.ext_proc_options import (
    IgnoreClientHeaders,
    SourceHeader,
    Tracing,
    ext_proc_settings,
    traced,
)
from epp.cli.go_flags import CommandLine, stray_words
from epp.cli.kubernetes_options import pods_and_pool_name, warn_of_unused_kubernetes_options
from epp.cli.metrics_options import (
    DeprecatedMetrics,
    MetricsCertDir,
    MetricsClientCaFile,
    MetricsEndpointAuth,
    checks_tokens,
    metrics_tls,
    warn_of_open_metrics,
    warn_of_open_token,
)
from epp.cli.model_server_options import (
    DrainLabel,
    MetricsStalenessThreshold,
    RefreshMetricsInterval,
)
from epp.cli.process_options import (
    DrainDelaySeconds,
    DrainTimeout,
    LogFormat,
    LogLevelOption,
    LogQueueBytes,
    ReadyFile,
    Verbosity,
    ZapLogLevel,
    drain_times,
    log_level,
)
from epp.cli.reference_flags import log_unused
from epp.cli.running import (
    EXPECTED,
    fail,
    from_flag,
    hand_over_the_interpreter_sooner,
    keep_large_blocks_apart,
    raise_descriptor_limit,
    require_folder,
    run_until_signalled,
    tame_garbage_collection,
    write_whole,
)
from epp.cli.service_manager import ServiceManager
from epp.cli.settings_options import read_options, with_options_of
from epp.cli.transport_options import (
    CertPath,
    ClientCaFile,
    GrpcMaxRecvMsgSize,
    GrpcMaxSendMsgSize,
    Listen,
    SecureServing,
    TlsCipherSuites,
    TlsMinVersion,
    TransportSetting,
    refuse_for_grpcio,
    socket_file,
    tls_settings,
    transport_settings,
    warn_of_unused,
)
from epp.cli.units import duration, label, signed_duration, size
from epp.data_layer.errors import EndpointOptionError
from epp.ext_proc import ExtProcSettings
from epp.kubernetes.settings import KubernetesSettings
from epp.observability import configure
from epp.outlier_detection import OutlierSettings
from epp.replication import ReplicaSettings, ReplicaStateError
from epp.tracing import TracingSettings
from epp.transport import TlsSettings
from epp.workers import Place, Supervisor, WorkerError, WorkerSharing, check_workers, run_worker

log = structlog.get_logger()

_ENDPOINTS = ("endpoints", "endpoints_file", "endpoint_dns")
"""Options that name endpoints."""

_NO_ENDPOINTS = (
    "no model servers: name them with --endpoint HOST:PORT, --endpoints-file FILE,",
    "  --endpoint-dns NAME:PORT, dataLayer.discovery in --config-file FILE, or --pool-name NAME.",
    "  For example: docker run -p 9002:9002 IMAGE --endpoint 10.0.0.7:8000 --secure-serving=false",
)


@with_options_of(
    ServeSettings,
    KubernetesSettings,
    ReplicaSettings,
    OutlierSettings,
    ExtProcSettings,
    ExplainSettings,
)
def serve(  # noqa: PLR0915 - one after the other, nothing nested
    ctx: typer.Context,
    config_file: ConfigFile = None,
    config_text: ConfigText = None,
    listen: Listen = "",
    metrics_cert_dir: MetricsCertDir = "",
    metrics_client_ca_file: MetricsClientCaFile = "",
    metrics_endpoint_auth: MetricsEndpointAuth = "",
    deprecated_metrics: DeprecatedMetrics = "",
    secure_serving: SecureServing = "true",
    cert_path: CertPath = "",
    client_ca_file: ClientCaFile = "",
    tls_min_version: TlsMinVersion = "",
    tls_cipher_suites: TlsCipherSuites = None,
    transport_setting: TransportSetting = None,
    grpc_max_recv_msg_size: GrpcMaxRecvMsgSize = "",
    grpc_max_send_msg_size: GrpcMaxSendMsgSize = "",
    ignore_client_headers: IgnoreClientHeaders = "",
    tracing: Tracing = "",
    source_header: SourceHeader = None,
    drain_label: DrainLabel = "llm-d.ai/drain=true",
    refresh_metrics_interval: RefreshMetricsInterval = "50ms",
    metrics_staleness_threshold: MetricsStalenessThreshold = "",
    drain_delay_seconds: DrainDelaySeconds = None,
    drain_timeout: DrainTimeout = None,
    log_format: LogFormat = "json",
    log_queue_bytes: LogQueueBytes = "16MiB",
    log_level_name: LogLevelOption = None,
    verbosity: Verbosity = None,
    zap_log_level: ZapLogLevel = "",
    ready_file: ReadyFile = None,
    **values: object,
) -> None:
    """Run the endpoint picker: an ext_proc server for Envoy."""
    given = ctx.obj if isinstance(ctx.obj, CommandLine) else CommandLine()
    if config_file is not None and config_text is not None:
        fail("--config-file and --config-text exclude each other")
    if ready_file is not None:
        require_folder("--ready-file", ready_file)
    try:
        place = Place.of(os.environ)
        path = socket_file(listen)
        tls = tls_settings(
            secure_serving, cert_path, tls_min_version, tls_cipher_suites or (), client_ca_file
        )
        tls_of_metrics = metrics_tls(metrics_cert_dir, metrics_client_ca_file)
        if values["transport"] == "grpcio":
            refuse_for_grpcio(transport_setting or (), tls)
        ext_proc = ext_proc_settings(
            ctx,
            values,
            source_headers=source_header,
            ignore_client_headers=ignore_client_headers,
        )
        traces = traced(tracing, values, os.environ)
        limits = transport_settings(
            transport_setting or (),
            grpc_max_recv_msg_size,
            grpc_max_send_msg_size,
            max_body_bytes=ext_proc.max_body_bytes,
        )
        interval = from_flag(
            "--refresh-metrics-interval", signed_duration, refresh_metrics_interval
        )
        draining = from_flag("--drain-label", label, drain_label)
        staleness = from_flag("--metrics-staleness-threshold", _maybe, metrics_staleness_threshold)
        drain_delay, drain = drain_times(drain_delay_seconds, drain_timeout)
        level = log_level(log_level_name, verbosity, zap_log_level)
        queue_bytes = from_flag("--log-queue-bytes", size, log_queue_bytes)
        derived = read_options(ServeSettings, values)
        outliers = OutlierSettings(**read_options(OutlierSettings, values))
        replicas = ReplicaSettings(**read_options(ReplicaSettings, values))
        explain = ExplainSettings(**read_options(ExplainSettings, values))
        has_endpoints = any(derived[each] for each in _ENDPOINTS)
        pods, derived["pool_name"] = pods_and_pool_name(
            values, os.environ, has_endpoints=has_endpoints
        )
        is_authenticated = checks_tokens(metrics_endpoint_auth, has_pods=pods is not None)
    except ValueError as error:
        fail(str(error))
    if derived["enable_admin_writes"] and derived["admin_token_file"] is None:
        fail("--enable-admin-writes needs --admin-token-file, a file with the token of its clients")
    if not (has_endpoints or pods or config_file or config_text):
        fail("\n".join(_NO_ENDPOINTS))
    memory = _shared_memory(place, derived["workers"])
    configure(
        level=level,
        log_format=log_format,
        queue_bytes=queue_bytes,
        standard_streams=True,
        shared_lock=memory,
    )
    _log_ignored(given, traces)
    warn_of_unused_kubernetes_options(values, pods, has_endpoints=has_endpoints)
    if tls is None:
        warn_of_unused(cert_path, tls_min_version, tls_cipher_suites or ())

    if derived["enable_admin_writes"]:
        warn_of_open_token(derived["host"], tls_of_metrics)

    async def main(stop: asyncio.Event) -> None:
        settings = ServeSettings(
            **derived,
            pods=pods,
            tracing=traces,
            metrics_endpoint_auth=is_authenticated,
            config=await asyncio.to_thread(load_config, config_file, config_text),
            config_file=config_file,
            socket_file=path,
            metrics_tls=tls_of_metrics,
            has_deprecated_metrics=deprecated_metrics == "true"
            or (not deprecated_metrics and ext_proc.compat == "reference"),
            # The Go EPP raises intervals below 50 ms, too.
            refresh_metrics_interval_seconds=max(0.05, interval),
            metrics_staleness_seconds=2.0 if staleness is None else staleness,
            eviction_staleness_seconds=0.2 if staleness is None else staleness,
            drain_label=draining,
            drain_delay_seconds=drain_delay,
            drain_timeout_seconds=drain,
            ext_proc=ext_proc,
            outliers=outliers,
            explain=explain,
            replicas=replicas,
            transport_settings=limits,
            tls=tls,
        )
        _tune_process()
        if place is not None:
            await run_worker(settings, place, stop, _made)
            return
        manager = ServiceManager.of(os.environ)
        served: App | Supervisor
        if memory is not None:
            check_workers(settings)
            served = Supervisor(settings, memory)
        else:
            served = _made(settings)
        async with manager.notified(stop, served.reload_now):
            await served.run(stop, partial(_announce, ready_file, tls_of_metrics, manager))

    run_until_signalled(main, expected=(*EXPECTED, WorkerError))


def _shared_memory(place: Place | None, workers: int) -> int | None:
    """Return the descriptor of the memory that workers share; None for a single process."""
    if place is not None:
        return place.memory
    return os.memfd_create("epp-workers") if workers > 1 else None


def _made(settings: ServeSettings, sharing: WorkerSharing | None = None) -> App:
    try:
        if sharing is None:
            return App(settings)
        return App(settings, sharing=sharing, make_flow=sharing.make_flow)
    except (EndpointOptionError, ReplicaStateError) as error:
        fail(str(error))


def _tune_process() -> None:
    """Set limits of the process and of the interpreter; those of the garbage collector last."""
    raise_descriptor_limit()
    keep_large_blocks_apart()
    hand_over_the_interpreter_sooner()
    tame_garbage_collection()


def _log_ignored(given: CommandLine, traces: TracingSettings | None) -> None:
    if words := stray_words(given):
        log.warning("words on the command line were ignored", **words)
    log_unused(given.reference, os.environ, is_tracing=traces is not None)


def _maybe(text: str) -> float | None:
    return duration(text) if text else None


def _announce(
    ready_file: Path | None,
    tls_of_metrics: TlsSettings | None,
    manager: ServiceManager,
    ports: Ports,
) -> None:
    """Log warnings, and report that every port listens: in the ready file and to systemd."""
    warn_of_open_metrics(tls_of_metrics)
    if ready_file is not None:
        document = {"grpc": ports.grpc, "health": ports.health, "metrics": ports.metrics}
        write_whole(ready_file, json.dumps(document))
    manager.started("serving")
