"""Which of a client's headers reach the endpoint picker, and which ones the gateway writes.

This module uses none of Envoy's types, like the `GatewayConfig` that it is a part of.
"""

import re
from dataclasses import dataclass
from enum import Enum

from epp.lab.envoy.names import STEERING_HEADERS

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
"""Headers by which a client changes what the endpoint picker decides: priority, share, model, time
limits, cost, session, profile. Plugins that are configured with other names read those instead."""

_TOKEN = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]+")
"""RFC 9110 §5.6.2 without the underscore: Envoy drops a client's header that has one."""

_GATEWAYS_OWN = frozenset(
    {*STEERING_HEADERS, "x-forwarded-for", "host", "content-length", "transfer-encoding"}
)


class ClientHeaders(Enum):
    """What the gateway does with the `CLIENT_HEADERS` that a client sends."""

    KEEP = "keep"
    """They reach the endpoint picker: every client sets its own priority and share."""

    STRIP = "strip"
    """They are removed before any filter."""


@dataclass(frozen=True, slots=True)
class HeaderToSet:
    """A header that the gateway writes, whatever the client sent."""

    name: str
    """In lower case."""

    value: str
    """Text, or a format of Envoy such as `%DOWNSTREAM_PEER_SUBJECT%`; one that yields nothing
    leaves the request without the header."""

    @property
    def is_format(self) -> bool:
        """Whether Envoy makes the value out of the request."""
        return "%" in self.value.replace("%%", "")


def header_to_set(text: str) -> HeaderToSet:
    """Return the header that `NAME=VALUE` describes.

    Raises:
        ValueError: the text has another form, or the gateway sets this header itself.
    """
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ValueError(f"not NAME=VALUE: {text!r}")
    if not value.isprintable():
        raise ValueError(f"the value has characters that cannot be printed: {text!r}")
    return HeaderToSet(header_name(name), value.strip())


def header_name(text: str) -> str:
    """Return the name of a header in lower case.

    Raises:
        ValueError: the text is no header name, or an operator may not set or remove it.
    """
    name = text.strip().lower()
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"not the name of a header (without an underscore): {text!r}")
    if name in _GATEWAYS_OWN or name.startswith("x-envoy-"):
        raise ValueError(f"{name} is the gateway's own")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderRules:
    """What the gateway does to a request's headers before the endpoint picker sees them.

    Raises:
        ValueError: a name is not one to keep, to strip or to set.
    """

    client_headers: ClientHeaders = ClientHeaders.KEEP

    kept: tuple[str, ...] = ()
    """With `STRIP`: client headers that pass all the same, such as a signed session token."""

    stripped: tuple[str, ...] = ()
    """Further headers to remove, such as the one that a profile handler is configured with."""

    to_set: tuple[HeaderToSet, ...] = ()

    def __post_init__(self) -> None:
        for name in self.stripped:
            header_name(name)
        if self.kept and self.client_headers is ClientHeaders.KEEP:
            raise ValueError("a header to keep needs `strip`: otherwise all headers are kept")
        for name in self.kept:
            if name not in CLIENT_HEADERS:
                raise ValueError(f"{name} need not be kept: `strip` does not remove it")
        names = [each.name for each in self.to_set]
        for name in names:
            if names.count(name) > 1 or name in self.kept or name in self.stripped:
                raise ValueError(f"{name} is set twice, or set and also kept or stripped")

    @property
    def removed(self) -> tuple[str, ...]:
        """A client's headers to remove before any filter, each once.

        A header that the gateway sets is removed first, with its synonyms: its format may yield
        nothing, and then the client's value would remain.
        """
        names = [*STEERING_HEADERS, *self.stripped]
        if self.client_headers is ClientHeaders.STRIP:
            names += (name for name in CLIENT_HEADERS if name not in self.kept)
        for each in self.to_set:
            names += synonyms(each.name)
        return tuple(dict.fromkeys(names))


def synonyms(name: str) -> tuple[str, ...]:
    """Return all names, new and old, of the header `name`."""
    return next((names for names in _SYNONYMS if name in names), (name,))
