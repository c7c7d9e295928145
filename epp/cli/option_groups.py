"""`typer.Option` for options of each group in the help of a command."""

from functools import partial
from typing import Any

import typer

from epp.inputs import Panel


def panel(heading: Panel) -> Any:  # noqa: ANN401 - what typer.Option returns
    """Return `typer.Option` for options that the help shows under ``heading``."""
    return partial(typer.Option, rich_help_panel=heading.value)


configuration = panel(Panel.CONFIGURATION)
model_servers = panel(Panel.MODEL_SERVERS)
ports = panel(Panel.PORTS)
tls = panel(Panel.TLS)
transport = panel(Panel.TRANSPORT)
limits = panel(Panel.LIMITS)
messages = panel(Panel.MESSAGES)
metrics = panel(Panel.METRICS)
logs = panel(Panel.LOGS)
process = panel(Panel.PROCESS)
gateway = panel(Panel.GATEWAY)
clients = panel(Panel.CLIENTS)
endpoint_picker = panel(Panel.ENDPOINT_PICKER)
load = panel(Panel.LOAD)
search = panel(Panel.SEARCH)
requests = panel(Panel.REQUESTS)
traffic = panel(Panel.TRAFFIC)
results = panel(Panel.RESULTS)
