"""``epp doctor``: check a deployment, or parts of it, for known problems."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import structlog
import typer

from epp.building import make_builder
from epp.cli import option_groups as groups
from epp.cli.doctor_fixes import close_plugins, configuration, envoy_file, print_fixed
from epp.cli.doctor_inputs import Inputs, read_deployment
from epp.cli.doctor_options import (
    FIELDS,
    Epp,
    EppCaFile,
    EppCertFile,
    EppPool,
    EppTokenFile,
    GrpcHealthPort,
    GrpcPort,
    MetricsPort,
    ServiceAccount,
    is_given,
    read_serve_options,
)
from epp.cli.doctor_picker import read_picker
from epp.cli.metrics_options import MetricsEndpointAuth
from epp.cli.model_server_options import MetricsStalenessThreshold, RefreshMetricsInterval
from epp.cli.running import fail, from_flag
from epp.cli.settings_options import with_options_of
from epp.cli.units import duration
from epp.config import ConfigError, load_file, longest_wait_seconds
from epp.doctor import (
    QUEUED_SECONDS,
    Diagnosis,
    DoctorError,
    Gateway,
    Level,
    ScrapeTimes,
    Source,
    examine_deployment,
    examine_envoy,
    read_admin,
    read_file,
    skip_envoy,
)
from epp.kubernetes.settings import KubernetesSettings
from epp.settings import ServeSettings

_TIMES = (
    "refresh_metrics_interval",
    "metrics_staleness_threshold",
    "scoring_staleness_seconds",
    "scrape",
)
_NOTHING = (
    "nothing to check: give --admin URL or --file PATH (Envoy), --config-file FILE, --endpoint"
    " HOST:PORT or --endpoints-file FILE (model servers), --epp URL (a running endpoint picker),"
    " --pool-name NAME (Kubernetes) or --grpc-port PORT"
)


@with_options_of(ServeSettings, KubernetesSettings, only=FIELDS)
def doctor(
    ctx: typer.Context,
    admin: Annotated[
        str | None,
        groups.gateway(
            help="Admin endpoint of a running Envoy, for example http://127.0.0.1:9901."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        groups.gateway(help="A bootstrap or a /config_dump, YAML or JSON, instead of --admin."),
    ] = None,
    ext_proc: Annotated[
        str | None,
        groups.gateway(
            help="Name of the EPP's ext_proc filter, or of its cluster, if there are others."
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        groups.configuration(
            help="EndpointPickerConfig of the EPP. It also says how long requests may wait in the"
            f" EPP's queue; {QUEUED_SECONDS:g} s without one."
        ),
    ] = None,
    epp: Epp = "",
    epp_ca_file: EppCaFile = "",
    epp_cert_file: EppCertFile = "",
    page_token_file: EppTokenFile = None,
    pool: EppPool = "",
    service_account: ServiceAccount = "",
    refresh_metrics_interval: RefreshMetricsInterval = "50ms",
    metrics_staleness_threshold: MetricsStalenessThreshold = "",
    metrics_endpoint_auth: MetricsEndpointAuth = "",
    grpc_port: GrpcPort = None,
    grpc_health_port: GrpcHealthPort = None,
    metrics_port: MetricsPort = None,
    fix: Annotated[
        bool,
        groups.results(
            "--fix",
            help="Print --file, or --config-file, with everything changed that can be mended"
            " mechanically; the findings go to standard error. Nothing is written.",
        ),
    ] = False,
    diff: Annotated[
        bool,
        groups.results("--diff", help="With --fix, print the differences of both files instead."),
    ] = False,
    as_json: Annotated[bool, groups.results("--json", help="Print JSON.")] = False,
    **values: object,
) -> None:
    """Check an Envoy, a configuration, model servers, a running EPP and a cluster.

    Each part is optional; a check that lacks its part is named with the option to give. Each line
    is a finding: error, warning or ok, the check, the place, what was found, the consequence, and
    what to do. The exit status is 1 if there are errors, 2 if a part could not be read. Nothing is
    changed.
    """
    if problem := _contradiction(
        has_both=admin is not None and file is not None,
        has_file=file is not None or config_file is not None,
        fix=fix,
        diff=diff,
        as_json=as_json,
    ):
        fail(problem)
    ports = {
        "--grpc-port": grpc_port,
        "--grpc-health-port": grpc_health_port,
        "--metrics-port": metrics_port,
    }
    has_times = is_given(ctx, *_TIMES)
    try:
        options = read_serve_options(values)
        times = ScrapeTimes(
            interval_seconds=max(
                0.05, from_flag("--refresh-metrics-interval", duration, refresh_metrics_interval)
            ),
            is_adaptive=options.values["scrape"] == "adaptive",
            scoring_staleness_seconds=options.values["scoring_staleness_seconds"],
            metrics_staleness_seconds=from_flag(
                "--metrics-staleness-threshold", duration, metrics_staleness_threshold or "2s"
            ),
        )
        source = _read_envoy(admin, file)
        config, queued, builder = None, QUEUED_SECONDS, make_builder()
        if config_file is not None:
            config = load_file(config_file, inspect=builder.registry.inspector(config_file.parent))
            queued = longest_wait_seconds(config)
        gateway = None if source is None else Gateway(source, ext_proc, queued_seconds=queued)
        picker = None
        if epp:
            picker = read_picker(
                epp,
                pool=pool,
                ca_file=epp_ca_file,
                cert_file=epp_cert_file,
                token_file=page_token_file,
                grpc_port=grpc_port,
                health_port=grpc_health_port,
            )
        inputs = Inputs(
            options=options,
            config=config,
            times=times if has_times else None,
            gateway=gateway,
            picker=picker,
            ports={option: port for option, port in ports.items() if port is not None},
            reviews_tokens=metrics_endpoint_auth != "false",
            account=service_account,
        )
        given = (gateway, config, picker, inputs.pods, inputs.ports or None)
        if not (any(each is not None for each in given) or options.has_endpoints or has_times):
            fail(_NOTHING)
        with _quiet():
            deployment = asyncio.run(read_deployment(inputs, builder))
            found = Diagnosis.joined(
                skip_envoy() if gateway is None else examine_envoy(gateway),
                examine_deployment(deployment),
            )
            has_errors = found.count(Level.ERROR) > 0
            if fix:
                files = [] if file is None else [envoy_file(file, ext_proc, queued)]
                if config_file is not None:
                    files.append(configuration(config_file, deployment, builder))
                has_errors = print_fixed(files, found, as_diff=diff)
            else:
                print(found.json() if as_json else "\n".join(found.lines()))  # noqa: T201 - output
        close_plugins(deployment)
    except (ConfigError, DoctorError, ImportError, ValueError) as error:
        fail(str(error))
    if has_errors:
        raise typer.Exit(1)


def _contradiction(*, has_both: bool, has_file: bool, fix: bool, diff: bool, as_json: bool) -> str:
    """Return which options contradict each other; "" if none do."""
    if has_both:
        return "give either --admin URL or --file PATH"
    if fix and as_json:
        return "--fix and --json exclude each other"
    if diff and not fix:
        return "--diff needs --fix"
    if fix and not has_file:
        return "--fix needs --file or --config-file, the file to mend"
    return ""


def _read_envoy(admin: str | None, file: Path | None) -> Source | None:
    if admin is not None:
        return read_admin(admin)
    return None if file is None else read_file(file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the logs of plugins and discoveries, because the findings contain what matters."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        yield
    finally:
        structlog.configure(**before)
