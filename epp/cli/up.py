"""``epp up``: a whole gateway in one terminal."""

from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.text import Text

from epp.cli import option_groups as groups
from epp.cli.envoy_options import (
    ClientHeadersOption,
    KeepHeader,
    Limit,
    SetHeader,
    StripHeader,
    gateway_limits,
    header_rules,
)
from epp.cli.fleet import fleet_labels
from epp.cli.running import EXPECTED, fail, own_command, run_until_signalled
from epp.cli.settings_options import read_options, with_options_of
from epp.inputs import MAX_PORT
from epp.lab.envoy import ClientHeaders, EnvoyError, Mode
from epp.lab.up import RunningGateway, UpError, UpSettings, default_config
from epp.lab.up import up as run_gateway

_EXPECTED = (*EXPECTED, EnvoyError, UpError)


@with_options_of(UpSettings)
def up(
    mode: Annotated[
        Mode,
        groups.gateway(
            help="Which parts of a request and its response Envoy sends to the endpoint picker."
        ),
    ] = Mode.LEAN,
    endpoint: Annotated[
        list[str] | None,
        groups.model_servers(
            help="A real model server, instead of the fake fleet; repeatable.", metavar="IP:PORT"
        ),
    ] = None,
    fleet_size: Annotated[
        int, groups.model_servers(help="Number of fake servers.", metavar="N")
    ] = 3,
    label: Annotated[
        list[str] | None,
        groups.model_servers(
            help="Label of a fake server; FIRST-LAST:KEY=VALUE for several. Repeatable.",
            metavar="INDEX:KEY=VALUE",
        ),
    ] = None,
    fleet_arg: Annotated[
        list[str] | None,
        groups.model_servers(help="Further argument for epp fleet; repeatable.", metavar="ARG"),
    ] = None,
    serve_arg: Annotated[
        list[str] | None,
        groups.endpoint_picker(help="Further argument for epp serve; repeatable.", metavar="ARG"),
    ] = None,
    config_file: Annotated[
        Path | None,
        groups.endpoint_picker(
            help="EndpointPickerConfig, reloaded when it changes; by default one that places"
            " requests by predicted times.",
            metavar="FILE",
        ),
    ] = None,
    objects: Annotated[
        list[Path] | None,
        groups.endpoint_picker(
            help="File or directory of InferenceObjectives and InferenceModelRewrites; repeatable.",
            metavar="PATH",
        ),
    ] = None,
    model: Annotated[
        str, groups.model_servers(help="Model of the fake fleet.", metavar="NAME")
    ] = "tiny",
    client_headers: ClientHeadersOption = ClientHeaders.KEEP,
    keep_header: KeepHeader = None,
    strip_header: StripHeader = None,
    set_header: SetHeader = None,
    limit: Limit = None,
    port: Annotated[
        int,
        groups.gateway(
            help="Port on which Envoy listens; 0 for any.", min=0, max=MAX_PORT, metavar="PORT"
        ),
    ] = 8080,
    **values: object,
) -> None:
    """Run a whole gateway in this terminal: fake fleet, endpoint picker and a real Envoy."""
    if endpoint and label:
        fail("--label is for the fake fleet: it cannot be used with --endpoint")
    fleet_labels(label or (), fleet_size)
    try:
        headers = header_rules(client_headers, keep_header, strip_header, set_header)
        limits = gateway_limits(limit)
    except ValueError as error:
        fail(str(error))
    config_file = config_file or default_config(serve_arg or ())
    given = [("--config-file", config_file), *(("--objects", each) for each in objects or ())]
    settings = UpSettings(
        mode=mode,
        endpoints=tuple(endpoint or ()),
        fleet_size=fleet_size,
        fleet_args=(
            *(word for each in label or () for word in ("--label", each)),
            *(fleet_arg or ()),
        ),
        serve_args=(
            *("--log-format", "console"),
            *(word for flag, path in given if path is not None for word in (flag, str(path))),
            *(serve_arg or ()),
        ),
        port=port,
        **read_options(UpSettings, values),
        model=model,
        headers=headers,
        limits=limits,
    )

    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(Text(f"» {text}", style="bold green"))

    def ready(gateway: RunningGateway) -> None:
        console.print(Text("\nGet a completion, in a second terminal:\n", style="bold"))
        # Plain print: rich would wrap the lines that are meant to be copied.
        for stream in (False, True):
            print(f"  {gateway.curl(stream=stream)}\n")  # noqa: T201
        own, metrics = own_command(), gateway.metrics_url
        picker = metrics.removesuffix("/metrics")
        commands = (
            ("Send load", f"{own} load --url {gateway.url} --concurrency 16 --duration 10"),
            ("Show the metrics of the endpoint picker", f"curl -s {metrics}"),
            (
                "Show the queued requests, with flow control",
                f"{own} explain queue --admin {picker}",
            ),
            (
                "Check all of it",
                f"{own} doctor --admin {gateway.envoy.admin_url} --epp {picker}",
            ),
        )
        for purpose, command in commands:
            print(f"{purpose}:\n\n  {command}\n")  # noqa: T201
        print("Ctrl-C stops all.\n")  # noqa: T201

    say("starting; ready in a few seconds")
    run_until_signalled(
        lambda stop: run_gateway(settings, stop=stop, say=say, ready=ready), expected=_EXPECTED
    )
