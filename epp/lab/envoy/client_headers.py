"""Which headers of a client the gateway removes, passes on or overwrites.

Part of `GatewayConfig`; like it, this module imports none of Envoy's types.
"""

import re
from dataclasses import dataclass
from enum import Enum

from epp.lab.envoy.names import POOL, STEERING_HEADERS

FAIRNESS_HEADERS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
REWRITE_HEADERS = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")

_SYNONYMS = (FAIRNESS_HEADERS, OBJECTIVE_HEADERS, REWRITE_HEADERS, TTFT_HEADERS, TPOT_HEADERS)

CLIENT_HEADERS = (
    *OBJECTIVE_HEADERS,
    *FAIRNESS_HEADERS,
    *REWRITE_HEADERS,
    "x-llm-d-request-ttl-ms",
    "x-epp-force-endpoint",
    POOL,
    *TTFT_HEADERS,
    *TPOT_HEADERS,
    "x-llm-d-video-fps",
    "x-llm-d-video-duration-seconds",
    "x-llm-d-video-resolution",
    "x-gateway-destination-endpoint-subset",
    "x-session-token",
    "x-session-id",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "epp-profile",
    "test-epp-endpoint-selection",
    "x-original-path",
    "x-forwarded-path",
)
"""Headers with which a client influences the endpoint picker: priority, share, model, time limits,
cost, session, profile. A plugin may be configured with other names, which are not listed here."""

_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]+")
"""RFC 9110 §5.6.2 without the underscore: Envoy drops client headers with one."""

_GATEWAYS_OWN = frozenset(
    {*STEERING_HEADERS, "x-forwarded-for", "host", "content-length", "transfer-encoding"}
)


class ClientHeaders(Enum):
    """Whether the `CLIENT_HEADERS` of a request are removed."""

    KEEP = "keep"
    """Pass them to the endpoint picker: every client sets its own priority and share."""

    STRIP = "strip"
    """Remove them before any filter."""


@dataclass(frozen=True, slots=True)
class HeaderToSet:
    """A request header that the gateway sets, overwriting the client's value."""

    name: str
    """In lower case."""

    value: str
    """Text, or an Envoy format string such as `%DOWNSTREAM_PEER_SUBJECT%`; if its result is empty,
    the request has no such header."""

    @property
    def is_format(self) -> bool:
        """Whether the value is a format string, which Envoy evaluates per request."""
        return "%" in self.value.replace("%%", "")


def header_to_set(text: str) -> HeaderToSet:
    """Return the header that `NAME=VALUE` describes.

    Raises:
        ValueError: The text has another form, or the header is reserved for the gateway.
    """
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ValueError(f"not NAME=VALUE: {text!r}")
    if not value.isprintable():
        raise ValueError(f"the value has non-printable characters: {text!r}")
    return HeaderToSet(header_name(name), value.strip())


def header_name(text: str) -> str:
    """Return the name of a header in lower case.

    Raises:
        ValueError: The text is not a header name, or the header is reserved for the gateway.
    """
    name = text.strip().lower()
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"not a valid header name (underscores are not allowed): {text!r}")
    if name in _GATEWAYS_OWN or name.startswith("x-envoy-"):
        raise ValueError(f"{name} is reserved for the gateway")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """Changes to the headers of a request before it reaches the endpoint picker.

    Raises:
        ValueError: A name is invalid or reserved, or two rules contradict each other.
    """

    client_headers: ClientHeaders = ClientHeaders.KEEP

    kept: tuple[str, ...] = ()
    """With `STRIP`: client headers that are not removed, such as a signed session token."""

    stripped: tuple[str, ...] = ()
    """Further headers to remove, such as the header that a profile handler reads."""

    to_set: tuple[HeaderToSet, ...] = ()

    def __post_init__(self) -> None:
        for name in self.stripped:
            header_name(name)
        if self.kept and self.client_headers is ClientHeaders.KEEP:
            raise ValueError("a header to keep requires `strip`: otherwise all headers are kept")
        for name in self.kept:
            if name not in CLIENT_HEADERS:
                raise ValueError(f"{name} cannot be kept: `strip` does not remove it")
        names = [each.name for each in self.to_set]
        for name in names:
            if names.count(name) > 1 or name in self.kept or name in self.stripped:
                raise ValueError(f"{name} is set twice, or set and also kept or stripped")

    @property
    def removed(self) -> tuple[str, ...]:
        """Headers of a client to remove before any filter, without duplicates.

        Headers that the gateway sets, and their synonyms, are included: if the result of a format
        string is empty, the client's value must not remain.
        """
        names = [*STEERING_HEADERS, *self.stripped]
        if self.client_headers is ClientHeaders.STRIP:
            names += (name for name in CLIENT_HEADERS if name not in self.kept)
        for each in self.to_set:
            names += synonyms(each.name)
        return tuple(dict.fromkeys(names))


def synonyms(name: str) -> tuple[str, ...]:
    """Return all names of the header `name`, including old ones."""
    return next((names for names in _SYNONYMS if name in names), (name,))
