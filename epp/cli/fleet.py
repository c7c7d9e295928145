"""``epp fleet``: fake vLLM servers."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from epp.cli import fleet_files
from epp.cli.running import (
    EXPECTED,
    fail,
    raise_descriptor_limit,
    require_folder,
    run_until_signalled,
    write_whole,
)
from epp.inputs import MAX_PORT
from epp.lab import fleet as fake
from epp.lab.fleet import FleetError
from epp.sockets import descriptor_limit

_FILES_PER_SERVER = 3
_OWN_FILES = 64
_MANY = 20
_DEFAULT_SERVERS = 3
_NAMES = {fake.EngineType.VLLM: "vLLM", fake.EngineType.SGLANG: "SGLang"}
_EXPECTED = (*EXPECTED, FleetError)
_LABEL = re.compile(r"(?P<first>[0-9]{1,9})(-(?P<last>[0-9]{1,9}))?:(?P<key>[^=]+)=(?P<value>.*)")


def fleet(
    endpoints: Annotated[
        int | None,
        typer.Option(
            help="Number of fake servers; 3 by default, or as many as --scenario has.", metavar="N"
        ),
    ] = None,
    first_port: Annotated[
        int,
        typer.Option(
            help="Port of the first server, the others follow; 0 for any.",
            min=0,
            max=MAX_PORT,
            metavar="PORT",
        ),
    ] = 0,
    host: Annotated[
        str,
        typer.Option(help="Address on which they listen; 0.0.0.0 for all.", metavar="IP"),
    ] = "127.0.0.1",
    model: Annotated[str, typer.Option(help="Base model.", metavar="NAME")] = "tiny",
    engine: Annotated[
        fake.EngineType, typer.Option(help="Program whose metrics and paths the servers have.")
    ] = fake.EngineType.VLLM,
    data_parallel_size: Annotated[
        int, typer.Option(help="Data-parallel ranks of each server.", metavar="N")
    ] = 1,
    adapter: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter; repeatable.", metavar="NAME")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Speed and size of the servers: a model on a GPU, such as llama-3.1-8b/h100."
            " docs/engine-model.md lists them.",
            metavar="NAME",
        ),
    ] = "tiny",
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of running requests per server, instead of the preset's.",
            metavar="N",
        ),
    ] = None,
    time_scale: Annotated[
        float, typer.Option(help="Factor on every duration.", metavar="FACTOR")
    ] = 1.0,
    busy: Annotated[
        list[str] | None,
        typer.Option(
            help="Server INDEX reports N more waiting requests than it has; repeatable.",
            metavar="INDEX=N",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated text.", metavar="N")] = 0,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Label of a server in --write-endpoints; FIRST-LAST:KEY=VALUE for several"
            " servers. Repeatable.",
            metavar="INDEX:KEY=VALUE",
        ),
    ] = None,
    write_endpoints: Annotated[
        Path | None,
        typer.Option(
            help="Write an endpoints file for epp serve when all servers listen.", metavar="FILE"
        ),
    ] = None,
    scenario: Annotated[
        Path | None,
        typer.Option(
            help="Scenario as for epp simulate: number and engines of the servers, and their"
            " faults. epp load --traffic sends its requests.",
            metavar="FILE",
        ),
    ] = None,
    faults: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with faults and their times, in seconds after the first request: a"
            " list, or a scenario with the section faults.",
            metavar="FILE",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write what happened to each request, as JSON lines.", metavar="FILE"),
    ] = None,
    kv_events_port: Annotated[
        int | None,
        typer.Option(
            help="Publish KV events with ZeroMQ: port of the first server; its replay socket and"
            " the other servers have the next ones. 0 for any, none by default.",
            min=0,
            max=MAX_PORT,
            metavar="PORT",
        ),
    ] = None,
    kv_events_format: Annotated[
        fake.KvEventFormat | None,
        typer.Option(help="Encoding of KV events; by default that of the engine: vllm has maps."),
    ] = None,
    control_port: Annotated[
        int | None,
        typer.Option(
            help="Port of /lab/stats and /lab/requests; 0 for any, none by default.",
            min=0,
            max=MAX_PORT,
            metavar="PORT",
        ),
    ] = None,
) -> None:
    """Run N fake vLLM or SGLang servers in one process, on loopback by default."""
    for option, path in (("--write-endpoints", write_endpoints), ("--record", record)):
        if path is not None:
            require_folder(option, path)
    engines: Sequence[fake.EngineConfig] = ()
    plan = fake.FaultPlan()
    if scenario is not None:
        if faults is not None or adapter or preset != "tiny" or max_num_seqs is not None:
            fail(
                "--scenario has the engines and the faults: it cannot be used with --faults,"
                " --adapter, --preset or --max-num-seqs"
            )
        given = fleet_files.scenario(scenario, endpoints)
        engines, plan = given.engines, given.faults
    if engines:
        endpoints = len(engines)
    elif endpoints is None:
        endpoints = _DEFAULT_SERVERS
    if faults is not None:
        plan = fleet_files.fault_plan(faults, endpoints)
    labels = fleet_labels(label or (), endpoints)
    if labels and write_endpoints is None:
        fail("--label needs --write-endpoints: only that file contains labels")
    settings: dict[str, object] = {"preset": preset, "adapters": adapter or []}
    if max_num_seqs is not None:
        settings["max_num_seqs"] = max_num_seqs
    try:
        config = fake.FleetConfig(
            endpoints=endpoints,
            first_port=first_port,
            host=host,
            model=model,
            engine_type=engine,
            ranks=data_parallel_size,
            engine=fake.EngineConfig.from_mapping(settings),
            engines=tuple(engines),
            time_scale=time_scale,
            kv_events=_kv_events(kv_events_port, kv_events_format, engine),
            busy=dict(_index_and_count(each) for each in busy or ()),
            seed=seed,
        )
        servers = fake.Fleet(
            config,
            faults=plan,
            log=fake.RequestLog(record),
            control_port=control_port,
        )
    except fake.FleetConfigError as error:
        fail(str(error))
    except OSError as error:
        fail(f"--record {record}: {error.strerror}")
    raise_descriptor_limit()
    _check_descriptors(endpoints)
    console = Console(highlight=False, soft_wrap=True)

    def ready(running: fake.Fleet) -> None:
        if write_endpoints is not None:
            _write_endpoints(write_endpoints, running, labels)
        else:
            console.print(f"fake {_NAMES[engine]} servers: {_named(running.addresses)}")
        if running.control.url is not None:
            console.print(f"control: {running.control.url}/lab/stats, /lab/requests")

    run_until_signalled(lambda stop: servers.run(stop, ready=ready), expected=_EXPECTED)
    reason = servers.stats()["bottleneck"]
    if reason is not None and (record is not None or control_port is not None):
        fail(f"the fleet itself was the bottleneck: {reason}; its latencies are too long", status=3)


def _kv_events(
    port: int | None, given: fake.KvEventFormat | None, engine: fake.EngineType
) -> fake.KvEventsConfig | None:
    if port is None:
        if given is not None:
            fail("--kv-events-format needs --kv-events-port")
        return None
    is_map = engine is fake.EngineType.VLLM
    default = fake.KvEventFormat.MAP if is_map else fake.KvEventFormat.ARRAY
    return fake.KvEventsConfig(first_port=port, format=given or default)


def _check_descriptors(endpoints: int) -> None:
    """Exit with an error if the servers, with a few connections each, need too many descriptors."""
    limit, needed = descriptor_limit().soft, endpoints * _FILES_PER_SERVER + _OWN_FILES
    if needed > limit:
        fail(
            f"{endpoints} servers need {needed} open files, a listener and"
            f" {_FILES_PER_SERVER - 1} connections each, but the limit is {limit}:"
            f" raise it with ulimit -n {needed}, or start fewer"
        )


def _named(addresses: Sequence[str]) -> str:
    """Return the addresses, abbreviated if there are many."""
    if len(addresses) <= _MANY:
        return ", ".join(addresses)
    return f"{addresses[0]} to {addresses[-1]} ({len(addresses)})"


def _write_endpoints(path: Path, running: fake.Fleet, labels: dict[int, dict[str, str]]) -> None:
    entries: list[dict[str, object]] = []
    for index, address in enumerate(running.addresses):
        host, _, port = address.rpartition(":")
        entries.append(
            {"name": f"endpoint-{index}", "address": host, "port": int(port)}
            | ({"labels": labels[index]} if index in labels else {})
        )
    write_whole(path, json.dumps({"endpoints": entries}, indent=2) + "\n")


def fleet_labels(given: Iterable[str], endpoints: int) -> dict[int, dict[str, str]]:
    """Return the labels by index of the server; exits with an error if one is invalid."""
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
