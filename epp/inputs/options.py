"""Declares command-line options: a setting annotated with :class:`Option` becomes one.

The name, type, default, limits and help of a setting are declared once, on its dataclass::

    max_streams: Annotated[int, Option("Maximum number of open requests.", min=0)] = 100_000

:mod:`epp.cli.settings_options` makes ``--max-streams`` from it.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Final

MAX_PORT: Final = 65535


class Panel(StrEnum):
    """Headings in the help of a command, in the order in which the help has them."""

    SCENARIO = "Scenario"
    CONTENDERS = "What to compare"
    GATEWAY = "Gateway"
    CONFIGURATION = "Configuration"
    MODEL_SERVERS = "Model servers"
    KUBERNETES = "Kubernetes"
    REPLICAS = "Replicas"
    OUTLIERS = "Outlier detection"
    ENDPOINT_PICKER = "Endpoint picker"
    CLIENTS = "Clients"
    PORTS = "Ports"
    METRICS = "Metrics"
    TLS = "TLS"
    TRANSPORT = "Transport of ext_proc"
    MESSAGES = "Requests and responses"
    LIMITS = "Limits on requests"
    PROCESS = "Start and stop"
    LOGS = "Logs"
    EXPLAIN = "Explanations"
    REQUESTS = "Requests"
    TRAFFIC = "Traffic"
    LOAD = "Load"
    SEARCH = "Search"
    RESULTS = "Results"


class Form(Enum):
    """How the value of a setting is written on the command line."""

    PLAIN = auto()
    """As its type says: a number, a text, one of several words."""
    SIZE = auto()
    """Bytes, such as ``64MiB``."""
    DURATION = auto()
    """Seconds, such as ``50ms``."""
    BOOLEAN = auto()
    """``true`` or ``false``, as Go flags are written: ``--name=false``."""
    SWITCH = auto()
    """Without a value: the flag alone means true."""


@dataclass(frozen=True, slots=True)
class Option:
    """A setting's command-line option.

    Attributes:
        help: One or two sentences for ``--help``, which appends the default.
        panel: Heading under which the help lists it.
        form: How the value is written.
        flag: Name with the dashes; "" derives it from the name of the field.
        metavar: Name of the value in the help; "" for that of the form or type.
        min: Minimum of a number; None for none.
        max: Maximum of a number; None for none.
    """

    help: str
    panel: Panel
    form: Form = Form.PLAIN
    flag: str = ""
    metavar: str = ""
    min: float | None = None
    max: float | None = None
