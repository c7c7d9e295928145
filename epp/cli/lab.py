"""The lab commands: a fake fleet, load, an Envoy bootstrap, and all of them together."""

import asyncio
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from epp.cli.envoy_options import (
    ClientHeadersOption,
    KeepHeader,
    Limit,
    SetHeader,
    StripHeader,
    gateway_limits,
    header_rules,
)
from epp.cli.options import GrpcHealthPort, GrpcPort, MetricsPort
from epp.cli.running import (
    EXPECTED,
    fail,
    from_flag,
    own_command,
    require_folder,
    run_until_signalled,
    write_whole,
)
from epp.cli.units import duration, size
from epp.lab import fleet as fake
from epp.lab import load as generator
from epp.lab.envoy import (
    ClientHeaders,
    Destination,
    EnvoyError,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    Product,
)
from epp.lab.envoy.gateway_config import parse_ip
from epp.lab.fleet import FleetError
from epp.lab.load import LoadError
from epp.lab.up import Gateway, UpError, UpSettings
from epp.lab.up import up as run_gateway

_EXPECTED = (*EXPECTED, EnvoyError, FleetError, LoadError, UpError)
console = Console(highlight=False)
_LABEL = re.compile(r"(?P<first>[0-9]{1,9})(-(?P<last>[0-9]{1,9}))?:(?P<key>[^=]+)=(?P<value>.*)")


def fleet(
    endpoints: Annotated[int, typer.Option(help="Number of fake servers.")] = 3,
    first_port: Annotated[
        int, typer.Option(help="Port of the first; 0 for any.", min=0, max=65535)
    ] = 0,
    model: Annotated[str, typer.Option(help="Base model.")] = "tiny",
    adapter: Annotated[list[str] | None, typer.Option(help="LoRA adapter; repeatable.")] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Requests that run at once.")] = 8,
    time_scale: Annotated[float, typer.Option(help="Factor on every duration.")] = 1.0,
    busy: Annotated[
        list[str] | None,
        typer.Option(help="INDEX=N: server INDEX reports N more waiting requests; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of generated text.")] = 0,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="INDEX:KEY=VALUE, or FIRST-LAST:KEY=VALUE: a label in --write-endpoints;"
            " repeatable."
        ),
    ] = None,
    write_endpoints: Annotated[
        Path | None, typer.Option(help="Write an endpoints file for epp serve when ready.")
    ] = None,
) -> None:
    """Run N fake vLLM servers in one process on loopback ports."""
    if write_endpoints is not None:
        require_folder("--write-endpoints", write_endpoints)
    labels = _labels(label or (), endpoints)
    if labels and write_endpoints is None:
        fail("--label needs --write-endpoints: labels stand nowhere but in that file")
    try:
        config = fake.FleetConfig(
            endpoints=endpoints,
            first_port=first_port,
            model=model,
            engine=fake.EngineConfig(adapters=tuple(adapter or ()), max_num_seqs=max_num_seqs),
            time_scale=time_scale,
            busy=dict(_index_and_count(each) for each in busy or ()),
            seed=seed,
        )
    except fake.ConfigError as error:
        fail(str(error))

    def ready(running: fake.Fleet) -> None:
        if write_endpoints is not None:
            _write_endpoints(write_endpoints, running, labels)
        else:
            console.print(f"fake vLLM servers: {', '.join(running.addresses)}")

    run_until_signalled(lambda stop: fake.serve(config, ready=ready, stop=stop), expected=_EXPECTED)


def _write_endpoints(path: Path, running: fake.Fleet, labels: dict[int, dict[str, str]]) -> None:
    entries: list[dict[str, object]] = []
    for index, address in enumerate(running.addresses):
        host, _, port = address.rpartition(":")
        entries.append(
            {"name": f"endpoint-{index}", "address": host, "port": int(port)}
            | ({"labels": labels[index]} if index in labels else {})
        )
    write_whole(path, json.dumps({"endpoints": entries}, indent=2) + "\n")


def _labels(given: Iterable[str], endpoints: int) -> dict[int, dict[str, str]]:
    """Return labels by the index of their server."""
    labels: dict[int, dict[str, str]] = {}
    for text in given:
        match = _LABEL.fullmatch(text)
        first = int(match["first"]) if match else 0
        last = int(match["last"] or first) if match else 0
        if match is None or not first <= last < endpoints:
            fail(
                f"--label must be INDEX:KEY=VALUE with an index below {endpoints}, for example"
                f" 0:role=prefill, or FIRST-LAST:KEY=VALUE, for example 0-1:role=prefill, not"
                f" {text!r}"
            )
        for index in range(first, last + 1):
            labels.setdefault(index, {})[match["key"]] = match["value"]
    return labels


def _index_and_count(text: str) -> tuple[int, int]:
    index, _, count = text.partition("=")
    if not (index.isdecimal() and count.isdecimal()):
        fail(f"--busy must be INDEX=N, for example 0=50, not {text!r}")
    return int(index), int(count)


def load(
    url: Annotated[str, typer.Option(help="The gateway.")] = "http://127.0.0.1:8080",
    model: Annotated[str, typer.Option(help="Model in every request.")] = "tiny",
    api: Annotated[
        generator.Api, typer.Option(help="OpenAI endpoint.")
    ] = generator.Api.COMPLETIONS,
    concurrency: Annotated[
        int | None, typer.Option(help="Clients with one request in flight each (default 16).")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second, instead of --concurrency.")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="Stop after so many.")] = None,
    duration: Annotated[
        float | None, typer.Option(help="Stop after so many seconds (default 10).")
    ] = None,
    prompt_chars: Annotated[
        str,
        typer.Option(
            help="Characters in a prompt: N, LEAST-MOST (uniform) or lognormal:MEDIAN:P99."
        ),
    ] = "512",
    max_tokens: Annotated[
        str, typer.Option(help="Tokens asked for: N, LEAST-MOST or lognormal:MEDIAN:P99.")
    ] = "64",
    stream: Annotated[bool, typer.Option(help="Ask for server-sent events.")] = True,
    prefixes: Annotated[int, typer.Option(help="Groups of prompts sharing a prefix.")] = 0,
    prefix_chars: Annotated[int, typer.Option(help="Length of the shared prefix.")] = 0,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="NAME:VALUE, in every request; repeatable."),
    ] = None,
    abort_share: Annotated[float, typer.Option(help="Fraction of clients that leave early.")] = 0.0,
    timeout: Annotated[float, typer.Option(help="Longest wait for an answer, seconds.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of prompts and arrivals.")] = 0,
    slo_ttft: Annotated[
        str | None,
        typer.Option(help="Longest good time to first token, such as 500ms; shows the goodput."),
    ] = None,
    slo_tpot: Annotated[
        str | None, typer.Option(help="Longest good time per output token after the first.")
    ] = None,
    slo_latency: Annotated[
        str | None, typer.Option(help="Longest good time to the end of an answer.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the results: .json (the report), .csv (a line per request)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
) -> None:
    """Send load through a gateway and print the results; exit status 1 if all requests failed."""
    if concurrency is None and rate is None:
        concurrency = 16
    if requests is None and duration is None:
        duration = 10.0
    if output is not None:
        require_folder("--output", output)
    try:
        render = None if output is None else from_flag("--output", generator.renderer, output)
        plan = generator.LoadPlan(
            url=url,
            model=model,
            api=api,
            concurrency=concurrency,
            rate=rate,
            requests=requests,
            duration_seconds=duration,
            prompt_chars=from_flag("--prompt-chars", generator.parse_lengths, prompt_chars),
            max_tokens=from_flag("--max-tokens", generator.parse_lengths, max_tokens),
            slo=generator.Slo(
                ttft_seconds=_seconds("--slo-ttft", slo_ttft),
                tpot_seconds=_seconds("--slo-tpot", slo_tpot),
                latency_seconds=_seconds("--slo-latency", slo_latency),
            ),
            stream=stream,
            prefixes=prefixes,
            prefix_chars=prefix_chars,
            headers=tuple(_header(each) for each in header or ()),
            abort_share=abort_share,
            timeout_seconds=timeout,
            seed=seed,
        )
    except ValueError as error:
        fail(str(error))
    reports: list[generator.Report] = []

    async def main(stop: asyncio.Event) -> None:
        running = asyncio.create_task(
            generator.run_with_progress(plan, Console(stderr=True)), name="load"
        )
        stopping = asyncio.create_task(_cancel_on(stop, running), name="stop")
        reports.append(await running)
        stopping.cancel()

    run_until_signalled(main, expected=_EXPECTED)
    (report,) = reports
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))  # noqa: T201 - the command's output
    else:
        console.print(generator.report_table(report))
    if output is not None and render is not None:
        write_whole(output, render(report))
    if report.failed and not (report.succeeded or report.left_early):
        fail(f"every request failed, {report.failed} of {report.sent}", status=1)


def _seconds(flag: str, text: str | None) -> float | None:
    return None if text is None else from_flag(flag, duration, text)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        fail(
            f"--header {text!r} has no colon; NAME:VALUE is wanted,"
            " as in x-llm-d-inference-fairness-id:alice"
        )
    return name.strip(), value.strip()


async def _cancel_on(stop: asyncio.Event, running: "asyncio.Task[generator.Report]") -> None:
    await stop.wait()
    running.cancel()


def envoy_config(
    mode: Annotated[
        Mode, typer.Option(help="What Envoy sends to the endpoint picker.")
    ] = Mode.LEAN,
    product: Annotated[
        Product, typer.Option("--for", help="Envoy, or a product with Envoy inside.")
    ] = Product.ENVOY,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="A model server, IP:PORT; repeatable.")
    ] = None,
    endpoint_protocol: Annotated[
        ModelServerProtocol, typer.Option(help="What the model servers speak.")
    ] = ModelServerProtocol.HTTP1,
    destination: Annotated[
        Destination, typer.Option(help="How Envoy finds the picked endpoint.")
    ] = Destination.OVERRIDE_HOST,
    fail_open: Annotated[
        bool,
        typer.Option(
            "--fail-open",
            help="Route round robin while the endpoint picker is down; adaptive mode only.",
        ),
    ] = False,
    buffer_limit: Annotated[
        str, typer.Option(help="Longest request body in adaptive mode; else, to be sent again.")
    ] = "32MiB",
    client_headers: ClientHeadersOption = ClientHeaders.KEEP,
    keep_header: KeepHeader = None,
    strip_header: StripHeader = None,
    set_header: SetHeader = None,
    trusted_hops: Annotated[
        int, typer.Option(help="Proxies in front of Envoy whose x-forwarded-for is trusted.", min=0)
    ] = 0,
    limit: Limit = None,
    host: Annotated[
        str,
        typer.Option(help="IP address where Envoy listens; 127.0.0.1 for this host alone."),
    ] = "0.0.0.0",  # noqa: S104 - clients are elsewhere
    port: Annotated[int, typer.Option(help="Where Envoy listens.")] = 8080,
    access_log: Annotated[
        str,
        typer.Option(help="File for a JSON line per request; - for Envoy's standard output."),
    ] = "",
    keep_content_length: Annotated[
        bool,
        typer.Option(
            "--keep-content-length",
            help="Lean mode: send requests on with their length, for model servers that refuse"
            " chunked ones.",
        ),
    ] = False,
    admin_port: Annotated[int, typer.Option(help="Envoy's admin port, on loopback.")] = 9901,
    epp_host: Annotated[
        str | None,
        typer.Option(help="The endpoint picker's host; default 127.0.0.1, or its Service."),
    ] = None,
    epp_port: Annotated[int, typer.Option(help="The endpoint picker's ext_proc port.")] = 9002,
    epp_socket: Annotated[
        str, typer.Option(help="Path of its unix socket, instead of host and port.")
    ] = "",
    epp_tls: Annotated[
        bool | None,
        typer.Option(
            help="Speak TLS with it, as epp serve does by default; not with --secure-serving=false"
            " and not, by default, with --for.",
        ),
    ] = None,
    epp_ca_file: Annotated[
        str, typer.Option(help="Verify its certificate against these authorities.")
    ] = "",
    epp_client_cert: Annotated[
        str, typer.Option(help="Envoy's own certificate, for epp serve --client-ca-file.")
    ] = "",
    epp_client_key: Annotated[str, typer.Option(help="Its key.")] = "",
    write_all: Annotated[
        Path | None,
        typer.Option(help="Write the sample of each kind into this folder, and print nothing."),
    ] = None,
) -> None:
    """Print an Envoy bootstrap for a mode, ready for `envoy -c`, or objects for Kubernetes."""
    if write_all is not None and not write_all.is_dir():
        fail(f"--write-all: there is no folder {write_all}")
    if parse_ip(host) is None:
        fail(f"--host: not an IP address: {host!r}")
    own_host = "127.0.0.1" if product is Product.ENVOY else "epp.default.svc.cluster.local"
    try:
        config = GatewayConfig(
            mode=mode,
            destination=destination,
            endpoints=tuple(endpoint or ()),
            endpoint_protocol=endpoint_protocol,
            fail_open=fail_open,
            buffer_limit_bytes=from_flag("--buffer-limit", size, buffer_limit),
            headers=header_rules(client_headers, keep_header, strip_header, set_header),
            trusted_hops=trusted_hops,
            limits=gateway_limits(limit),
            listen_host=host,
            listen_port=port,
            access_log=access_log,
            keep_content_length=keep_content_length,
            admin_port=admin_port,
            epp_host=own_host if epp_host is None else epp_host,
            epp_port=epp_port,
            epp_socket=epp_socket,
            epp_tls=product is Product.ENVOY if epp_tls is None else epp_tls,
            epp_ca_file=epp_ca_file,
            epp_client_certificate_file=epp_client_cert,
            epp_client_key_file=epp_client_key,
        )
        # Late: importing Envoy's types takes most of a second.
        from epp.lab.envoy.samples import render, rendered  # noqa: PLC0415

        if write_all is None:
            print(render(product, config), end="")  # noqa: T201 - the command's output
            return
        for name, text in rendered().items():
            write_whole(write_all / name, text)
    except (ValueError, EnvoyError) as error:
        fail(str(error))


def up(
    mode: Annotated[
        Mode, typer.Option(help="What Envoy sends to the endpoint picker.")
    ] = Mode.LEAN,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="A real model server, IP:PORT, instead of the fake fleet; repeatable."),
    ] = None,
    fleet_size: Annotated[int, typer.Option(help="Fake servers.")] = 3,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="INDEX:KEY=VALUE, or FIRST-LAST:KEY=VALUE: a label of fake servers; repeatable."
        ),
    ] = None,
    fleet_arg: Annotated[
        list[str] | None, typer.Option(help="Further argument for epp fleet; repeatable.")
    ] = None,
    serve_arg: Annotated[
        list[str] | None, typer.Option(help="Further argument for epp serve; repeatable.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option(help="EndpointPickerConfig file, followed while running.")
    ] = None,
    objects: Annotated[
        list[Path] | None,
        typer.Option(help="File or directory with objectives and rewrites; repeatable."),
    ] = None,
    model: Annotated[str, typer.Option(help="Model of the fake fleet.")] = "tiny",
    client_headers: ClientHeadersOption = ClientHeaders.KEEP,
    keep_header: KeepHeader = None,
    strip_header: StripHeader = None,
    set_header: SetHeader = None,
    limit: Limit = None,
    port: Annotated[
        int, typer.Option(help="Where Envoy listens; 0 for any.", min=0, max=65535)
    ] = 8080,
    grpc_port: GrpcPort = 9002,
    grpc_health_port: GrpcHealthPort = 9003,
    metrics_port: MetricsPort = 9090,
) -> None:
    """Run a whole gateway in this terminal: fake fleet, endpoint picker and a real Envoy."""
    if endpoint and label:
        fail("--label is for the fake fleet: it cannot be used with --endpoint")
    _labels(label or (), fleet_size)
    try:
        headers = header_rules(client_headers, keep_header, strip_header, set_header)
        limits = gateway_limits(limit)
    except ValueError as error:
        fail(str(error))
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
        grpc_port=grpc_port,
        grpc_health_port=grpc_health_port,
        metrics_port=metrics_port,
        model=model,
        headers=headers,
        limits=limits,
    )

    def say(text: str) -> None:
        console.print(Text(f"» {text}", style="bold green"))

    def ready(gateway: Gateway) -> None:
        console.print(Text("\nGet a completion, in a second terminal:\n", style="bold"))
        # Plain print: rich would wrap the lines that are meant to be copied.
        for stream in (False, True):
            print(f"  {gateway.curl(stream=stream)}\n")  # noqa: T201
        own, metrics = own_command(), gateway.metrics_url
        commands = (
            ("Send load", f"{own} load --url {gateway.url} --concurrency 16 --duration 10"),
            ("Show the metrics of the endpoint picker", f"curl -s {metrics}"),
            (
                "Show who waits, with flow control",
                f"{own} explain queue --admin {metrics.removesuffix('/metrics')}",
            ),
            ("Check Envoy's configuration", f"{own} doctor --admin {gateway.envoy.admin_url}"),
        )
        for purpose, command in commands:
            print(f"{purpose}:\n\n  {command}\n")  # noqa: T201
        print("Ctrl-C stops all.\n")  # noqa: T201

    say("starting; ready in a few seconds")
    run_until_signalled(
        lambda stop: run_gateway(settings, stop=stop, say=say, ready=ready), expected=_EXPECTED
    )
