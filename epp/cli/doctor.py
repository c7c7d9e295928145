"""``epp doctor``: check an Envoy configuration for known problems."""

from pathlib import Path
from typing import Annotated

import typer

from epp.cli.running import fail
from epp.config import ConfigError, load_file, longest_wait_seconds
from epp.doctor import (
    QUEUED_SECONDS,
    DoctorError,
    Gateway,
    Level,
    examine,
    read_admin,
    read_file,
)


def doctor(
    admin: Annotated[
        str | None,
        typer.Option(help="Admin endpoint of a running Envoy, for example http://127.0.0.1:9901."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A bootstrap or a /config_dump, YAML or JSON, instead of --admin."),
    ] = None,
    ext_proc: Annotated[
        str | None,
        typer.Option(
            help="Name of the EPP's ext_proc filter, or of its cluster, if there are others."
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            help="EndpointPickerConfig of the EPP: how long requests may wait in its queue;"
            f" {QUEUED_SECONDS:g} s without one."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check an Envoy for settings that make requests fail or reach the wrong server.

    Each line is a finding: error, warning or ok, the check, the field in Envoy's configuration, its
    value, the consequence, and what to set. The exit status is 1 if there are errors, 2 if the
    configuration could not be read. Nothing is changed.
    """
    if (admin is None) == (file is None):
        fail("give either --admin URL or --file PATH")
    try:
        if admin is not None:
            source = read_admin(admin)
        else:
            assert file is not None  # noqa: S101 - one of them is given
            source = read_file(file)
        queued_seconds = QUEUED_SECONDS
        if config_file is not None:
            queued_seconds = longest_wait_seconds(load_file(config_file))
    except (DoctorError, ConfigError) as error:
        fail(str(error))
    report = examine(Gateway(source, ext_proc, queued_seconds=queued_seconds))
    text = report.json() if as_json else "\n".join(report.lines())
    print(text)  # noqa: T201 - the command's output
    if report.count(Level.ERROR):
        raise typer.Exit(1)
