"""Checks of timeouts that may end queued requests and long responses."""

from collections.abc import Iterator
from math import ceil, inf

from epp.doctor.check import Check
from epp.doctor.clusters import protocol_options
from epp.doctor.findings import Finding, error, set_to, taken_out, warning
from epp.doctor.gateway import Gateway
from epp.doctor.routes import FULL_DUPLEX
from epp.doctor.tree import ConfigNode

LONG_RESPONSE_SECONDS = 600.0
"""Plausible duration of a reasoning model's response, or of queueing plus a long prompt."""

_MESSAGE_SECONDS = 1000.0
"""Recommended message timeout, after which clients have given up."""

_DEFAULT_MESSAGE_SECONDS = 0.2
_ENOUGH_FOR_HEADERS_SECONDS = 1.0
_SURELY_TOO_SHORT_SECONDS = 10.0
_DEFAULT_ROUTE_SECONDS = 15.0
_DEFAULT_IDLE_SECONDS = 300.0


def _message_timeout(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        timeout = use.config.get("message_timeout")
        seconds = timeout.seconds(_DEFAULT_MESSAGE_SECONDS)
        queued = gateway.queued_seconds
        enough = _MESSAGE_SECONDS if queued == inf else max(_MESSAGE_SECONDS, ceil(queued) + 1)
        found, mend = _said(timeout, seconds), f"Set message_timeout: {enough:g}s"
        fix = set_to(timeout.path, f"{enough:g}s")
        # Envoy starts no timer for a direction whose body is full duplex.
        if not use.streams_request and seconds < min(queued, enough):
            level = error if seconds < _SURELY_TOO_SHORT_SECONDS else warning
            yield level(
                timeout.path,
                found,
                "A request that waits in the EPP's queue longer than that fails with 504; it may"
                f" wait there {_for(queued)}",
                f"{mend}; max_message_timeout as well",
                fix,
            )
        elif use.body_mode("response") != FULL_DUPLEX and seconds < _ENOUGH_FOR_HEADERS_SECONDS:
            yield warning(
                timeout.path,
                found,
                "It holds for the response headers: while the EPP is busy, responses fail with 504",
                mend,
                fix,
            )


def _route_timeout(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        if use.target is None:
            continue
        timeout = use.target.action("timeout")
        seconds = timeout.seconds(_DEFAULT_ROUTE_SECONDS)
        if 0 < seconds < LONG_RESPONSE_SECONDS:
            level = error if seconds <= gateway.queued_seconds else warning
            yield level(
                timeout.path,
                _said(timeout, seconds),
                "A response that takes longer is cut off, or fails with 504",
                "Set the route's timeout: 0s",
                set_to(timeout.path, "0s"),
            )
        each_try = use.target.action("retry_policy", "per_try_timeout")
        if 0 < each_try.seconds(0) < LONG_RESPONSE_SECONDS:
            yield warning(
                each_try.path,
                _said(each_try, each_try.seconds(0)),
                "A try that takes longer is given up while the model server works on it",
                "Take per_try_timeout out",
                taken_out(each_try.path),
            )


def _idle_timeout(gateway: Gateway) -> Iterator[Finding]:
    for use in gateway.uses:
        timeout = use.manager.node.get("stream_idle_timeout")
        if use.target is not None and use.target.action("idle_timeout"):
            timeout = use.target.action("idle_timeout")
        seconds = timeout.seconds(_DEFAULT_IDLE_SECONDS)
        if 0 < seconds < LONG_RESPONSE_SECONDS:
            yield warning(
                timeout.path,
                _said(timeout, seconds),
                "A request that is silent for longer, in the queue or while its prompt is worked"
                " on, fails with 408 or 504",
                "Set stream_idle_timeout of the connection manager, or idle_timeout of the route,"
                " to 0s",
                set_to(timeout.path, "0s"),
            )


def _stream_duration(gateway: Gateway) -> Iterator[Finding]:
    places = []
    for use in gateway.uses:
        manager = use.manager.node
        places.append(manager.get("common_http_protocol_options", "max_stream_duration"))
        if use.target is not None:
            places.append(use.target.action("max_stream_duration", "max_stream_duration"))
    for cluster in (*gateway.pools.values(), *gateway.epp_clusters.values()):
        options = protocol_options(cluster).get("common_http_protocol_options")
        places.append(options.get("max_stream_duration"))
    for place in places:
        if 0 < place.seconds(0) < LONG_RESPONSE_SECONDS:
            yield warning(
                place.path,
                _said(place, place.seconds(0)),
                "Streams that take longer are reset: responses are cut off",
                "Take max_stream_duration out, or set it to 0s",
                set_to(place.path, "0s"),
            )


def _for(seconds: float) -> str:
    return "for ever" if seconds == inf else f"for {seconds:g} s"


def _said(place: ConfigNode, seconds: float) -> str:
    name = place.path.rpartition(".")[2]
    return f"{name}: {seconds:g}s" if place else f"{name} is not set, so {seconds:g} s"


CHECKS = (
    Check("message-timeout", _message_timeout, "Envoy waits for a request in the EPP's queue"),
    Check("route-timeout", _route_timeout, "long responses are not cut off"),
    Check("idle-timeout", _idle_timeout, "silent requests are not cut off"),
    Check("stream-duration", _stream_duration, "no limit on the length of streams"),
)
