"""Options for the Envoy configuration: client headers, and limits per client."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from epp.cli import option_groups as groups
from epp.cli.named_values import name_and_value
from epp.cli.running import from_flag
from epp.lab.envoy import ClientHeaders, GatewayLimits, HeaderRules
from epp.lab.envoy.client_headers import header_name, header_to_set

ClientHeadersOption = Annotated[
    ClientHeaders,
    groups.clients(
        "--client-headers",
        help="Keep or remove client headers that set priority, fairness id, model, time limits or"
        " session.",
    ),
]
KeepHeader = Annotated[
    list[str] | None,
    groups.clients(
        help="Header that --client-headers strip does not remove; repeatable.", metavar="NAME"
    ),
]
StripHeader = Annotated[
    list[str] | None,
    groups.clients(help="Further client header to remove; repeatable.", metavar="NAME"),
]
SetHeader = Annotated[
    list[str] | None,
    groups.clients(
        help="Header that Envoy sets, replacing the client's. VALUE is text or a format such as"
        " %DOWNSTREAM_PEER_SUBJECT%. Repeatable.",
        metavar="NAME=VALUE",
    ),
]
Limit = Annotated[
    list[str] | None,
    groups.clients(
        help=f"Limit on clients; repeatable. Names: {', '.join(asdict(GatewayLimits()))}.",
        metavar="NAME=VALUE",
    ),
]


def header_rules(
    client_headers: ClientHeaders,
    keep: Sequence[str] | None,
    strip: Sequence[str] | None,
    to_set: Sequence[str] | None,
) -> HeaderRules:
    """Return the rules that the flags describe.

    Raises:
        ValueError: A flag's value is not allowed; the message names the flag.
    """
    return HeaderRules(
        client_headers=client_headers,
        kept=tuple(from_flag("--keep-header", header_name, each) for each in keep or ()),
        stripped=tuple(from_flag("--strip-header", header_name, each) for each in strip or ()),
        to_set=tuple(from_flag("--set-header", header_to_set, each) for each in to_set or ()),
    )


def gateway_limits(given: Sequence[str] | None) -> GatewayLimits:
    """Return the limits given as ``NAME=VALUE``.

    Raises:
        ValueError: A name is unknown, or a value is not allowed; the message names the flag.
    """
    defaults = GatewayLimits()
    values = [name_and_value("--limit", text, asdict(defaults)) for text in given or ()]
    return from_flag("--limit", lambda each: replace(defaults, **each), dict[str, Any](values))
