"""Options of ``epp doctor``: some of those of ``epp serve``, and the running endpoint picker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from epp.cli import option_groups as groups
from epp.cli.settings_options import read_options
from epp.inputs import MAX_PORT
from epp.kubernetes.settings import KubernetesSettings
from epp.settings import ServeSettings

SERVE_FIELDS: Final = (
    "endpoints",
    "endpoints_file",
    "endpoint_dns",
    "scrape",
    "scoring_staleness_seconds",
    "elects_leader",
    "writes_object_status",
    "objects",
    "host",
)
"""Fields of the settings of ``epp serve`` that the doctor needs."""
FIELDS: Final = (*SERVE_FIELDS, *KubernetesSettings.__dataclass_fields__)

_ON_ONE_MACHINE: Final = "Is it free here, or, with --epp, does it answer?"

Epp = Annotated[
    str,
    groups.endpoint_picker(
        help="URL of the metrics port of a running endpoint picker.", metavar="URL"
    ),
]
EppCaFile = Annotated[
    str,
    groups.endpoint_picker(
        help="Certificate authorities of an HTTPS --epp, PEM; by default well-known ones.",
        metavar="FILE",
    ),
]
EppCertFile = Annotated[
    str,
    groups.endpoint_picker(
        help="Certificate and key of this client, PEM, if --epp asks for them.", metavar="FILE"
    ),
]
EppTokenFile = Annotated[
    Path | None,
    groups.endpoint_picker(
        help="File with a bearer token that may read pages, where --metrics-endpoint-auth is on.",
        metavar="FILE",
    ),
]
EppPool = Annotated[
    str,
    groups.endpoint_picker(
        help="The InferencePool whose pages to read, where it serves several.", metavar="NAME"
    ),
]
ServiceAccount = Annotated[
    str,
    groups.endpoint_picker(
        help="Service account of the endpoint picker, whose rights are checked; by default those of"
        " the doctor's own account.",
        metavar="NAME",
    ),
]


def _port(purpose: str) -> Any:  # noqa: ANN401 - what typer.Option returns
    return groups.ports(
        help=f"Port of {purpose}. {_ON_ONE_MACHINE}", metavar="PORT", min=1, max=MAX_PORT
    )


GrpcPort = Annotated[int | None, _port("ext_proc")]
GrpcHealthPort = Annotated[int | None, _port("gRPC health checks")]
MetricsPort = Annotated[int | None, _port("/metrics")]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Values of the options that ``epp doctor`` shares with ``epp serve``."""

    values: dict[str, Any]
    kubernetes: KubernetesSettings

    @property
    def has_endpoints(self) -> bool:
        """Whether one of the options names endpoints."""
        return any(self.values[each] for each in ("endpoints", "endpoints_file", "endpoint_dns"))


def read_serve_options(values: dict[str, object]) -> ServeOptions:
    """Return the options.

    Raises:
        ValueError: A value is invalid; the message names the flag.
    """
    return ServeOptions(
        read_options(ServeSettings, values, SERVE_FIELDS),
        KubernetesSettings(**read_options(KubernetesSettings, values)),
    )


def is_given(ctx: typer.Context, *names: str) -> bool:
    """Whether one of the parameters is given on the command line."""
    sources = (ctx.get_parameter_source(name) for name in names)
    return any(source is not None and source.name != "DEFAULT" for source in sources)
