"""`typer.Option` for options of each group in the help of a command."""

from functools import partial
from typing import Any

import typer


def _group(heading: str) -> Any:  # noqa: ANN401 - what typer.Option returns
    """Return `typer.Option` for options that the help shows under ``heading``."""
    return partial(typer.Option, rich_help_panel=heading)


configuration = _group("Configuration")
model_servers = _group("Model servers")
ports = _group("Ports")
tls = _group("TLS")
transport = _group("Transport of ext_proc")
limits = _group("Limits on requests")
messages = _group("Requests and responses")
metrics = _group("Metrics")
logs = _group("Logs")
process = _group("Start and stop")
gateway = _group("Gateway")
clients = _group("Clients")
endpoint_picker = _group("Endpoint picker")
load = _group("Load")
requests = _group("Requests")
results = _group("Results")
