"""``epp fleet``: fake vLLM servers."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from epp.cli.running import EXPECTED, fail, require_folder, run_until_signalled, write_whole
from epp.inputs import MAX_PORT
from epp.lab import fleet as fake
from epp.lab.fleet import FleetError

_EXPECTED = (*EXPECTED, FleetError)
_LABEL = re.compile(r"(?P<first>[0-9]{1,9})(-(?P<last>[0-9]{1,9}))?:(?P<key>[^=]+)=(?P<value>.*)")


def fleet(
    endpoints: Annotated[int, typer.Option(help="Number of fake servers.", metavar="N")] = 3,
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
    adapter: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter; repeatable.", metavar="NAME")
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(help="Maximum number of running requests per server.", metavar="N")
    ] = 8,
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
) -> None:
    """Run N fake vLLM servers in one process, on loopback by default."""
    if write_endpoints is not None:
        require_folder("--write-endpoints", write_endpoints)
    labels = fleet_labels(label or (), endpoints)
    if labels and write_endpoints is None:
        fail("--label needs --write-endpoints: only that file contains labels")
    try:
        config = fake.FleetConfig(
            endpoints=endpoints,
            first_port=first_port,
            host=host,
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
            Console(highlight=False).print(f"fake vLLM servers: {', '.join(running.addresses)}")

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
