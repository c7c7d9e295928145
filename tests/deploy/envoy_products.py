"""The Envoy configuration of Istio and Envoy Gateway for our objects, in a bootstrap."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import yaml

from epp.app import Ports
from epp.lab.envoy import GatewayConfig
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.envoy_gateway import EXT_PROC_FILTER
from epp.lab.envoy.names import EPP_CLUSTER, MODEL_SERVERS_CLUSTER
from epp.lab.envoy.samples import SNIPPETS, render
from epp.lab.fleet import Fleet


def documents(name: str, **settings: Any) -> dict[str, dict[str, Any]]:
    """The objects of a snippet, by kind."""
    product, config = SNIPPETS[name]
    text = render(product, replace(config, **settings))
    return {each["kind"]: each["spec"] for each in yaml.safe_load_all(text)}


def plain_gateway(fleet: Fleet, ports: Ports) -> dict[str, Any]:
    """A gateway without an endpoint picker, as a product makes it before our objects come."""
    document = bootstrap(
        GatewayConfig(endpoints=fleet.addresses, listen_port=0, epp_port=ports.grpc)
    )
    resources = document["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["early_header_mutation_extensions"], manager["http_filters"][0]
    resources["clusters"] = [
        each for each in resources["clusters"] if each["name"] == MODEL_SERVERS_CLUSTER
    ]
    del resources["clusters"][0]["load_balancing_policy"]
    return document


def merge(base: dict[str, Any], value: dict[str, Any]) -> None:
    """Merge as messages are merged: fields of `value` win, lists grow."""
    for name, each in value.items():
        if isinstance(each, dict) and isinstance(base.get(name), dict):
            merge(base[name], each)
        elif isinstance(each, list):
            base[name] = [*base.get(name, []), *each]
        else:
            base[name] = each


def apply_envoy_filter(document: dict[str, Any], spec: dict[str, Any]) -> None:
    """Patch a bootstrap as Istio would its listener, route and clusters."""
    resources = document["static_resources"]
    listener = resources["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    merged: dict[str, Callable[[dict[str, Any]], None]] = {
        "LISTENER": lambda value: merge(listener, value),
        "NETWORK_FILTER": lambda value: merge(manager, value["typed_config"]),
        "HTTP_ROUTE": lambda value: merge(
            manager["route_config"]["virtual_hosts"][0]["routes"][0], value
        ),
        "CLUSTER": lambda value: merge(resources["clusters"][0], value),
    }
    for each in spec["configPatches"]:
        target, operation = each["applyTo"], each["patch"]["operation"]
        value = each["patch"]["value"]
        if operation == "MERGE":
            merged[target](value)
        elif (target, operation) == ("CLUSTER", "ADD"):
            resources["clusters"].append(value)
        else:
            assert (target, operation) == ("HTTP_FILTER", "INSERT_BEFORE")
            manager["http_filters"].insert(-1, value)


BODY_MODES = {"Buffered": "BUFFERED", "FullDuplexStreamed": "FULL_DUPLEX_STREAMED"}


def processing_mode(asked: dict[str, Any]) -> dict[str, str]:
    """What Envoy Gateway makes of an EnvoyExtensionPolicy's processingMode."""
    made: dict[str, str] = {}
    for way in ("request", "response"):
        body = BODY_MODES.get(asked[way].get("body", ""), "NONE")
        made |= {
            f"{way}_header_mode": "SEND",
            f"{way}_body_mode": body,
            # It sends trailers only where it must.
            f"{way}_trailer_mode": "SEND" if body == "FULL_DUPLEX_STREAMED" else "SKIP",
        }
    return made


def health_check(active: dict[str, Any]) -> dict[str, Any]:
    """What Envoy Gateway makes of an active health check over gRPC."""
    assert active["type"] == "GRPC"
    return {
        "timeout": active["timeout"],
        "interval": active["interval"],
        "unhealthy_threshold": active["unhealthyThreshold"],
        "healthy_threshold": active["healthyThreshold"],
        "grpc_health_check": {"service_name": active["grpc"]["service"]},
    }


def file_log(setting: dict[str, Any]) -> dict[str, Any]:
    """What Envoy Gateway makes of the access log of an EnvoyProxy."""
    assert (setting["type"], setting["format"]["type"]) == ("Route", "JSON")
    (sink,) = setting["sinks"]
    kind = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog"
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": kind,
            "path": sink["file"]["path"],
            "log_format": {"json_format": setting["format"]["json"]},
        },
    }


def as_envoy_gateway_would(
    document: dict[str, Any], objects: dict[str, dict[str, Any]], ports: Ports
) -> None:
    """Put into a bootstrap what Envoy Gateway makes of the policies."""
    resources = document["static_resources"]
    listener = resources["listeners"][0]
    listener["default_filter_chain"] = listener.pop("filter_chains")[0]
    manager = listener["default_filter_chain"]["filters"][0]["typed_config"]
    (asked,) = objects["EnvoyExtensionPolicy"]["extProc"]
    retry = asked["backendSettings"]["retry"]
    configured = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {
            "envoy_grpc": {"cluster_name": EPP_CLUSTER},
            "retry_policy": {
                "retry_on": ",".join(retry["retryOn"]["triggers"]),
                "num_retries": retry["numRetries"],
            },
        },
        "failure_mode_allow": asked["failOpen"],
        "message_timeout": asked["messageTimeout"],
        "allow_mode_override": asked["processingMode"]["allowModeOverride"],
        "processing_mode": processing_mode(asked["processingMode"]),
        "metadata_options": {
            "forwarding_namespaces": {"untyped": asked["metadata"]["accessibleNamespaces"]},
            "receiving_namespaces": {"untyped": asked["metadata"]["writableNamespaces"]},
        },
    }
    manager["http_filters"].insert(0, {"name": EXT_PROC_FILTER, "typed_config": configured})
    ours = bootstrap(GatewayConfig(endpoints=("127.0.0.1:1",), epp_port=ports.grpc))
    epp, _, servers = ours["static_resources"]["clusters"]
    resources["clusters"].append(epp)
    if checked := asked["backendSettings"].get("healthCheck"):
        epp["health_checks"] = [health_check(checked["active"])]
        percent = checked["panicThreshold"]
        epp["common_lb_config"] = {"healthy_panic_threshold": {"value": percent}}
    policy = servers["load_balancing_policy"]
    override = policy["policies"][0]["typed_extension_config"]["typed_config"]
    extracted = objects["BackendTrafficPolicy"]["loadBalancer"]["endpointOverride"]["extractFrom"]
    override["override_host_sources"] = extracted
    del override["selected_host_key"]
    resources["clusters"][0]["load_balancing_policy"] = policy
    telemetry = objects.get("EnvoyProxy", {}).get("telemetry", {"accessLog": {"settings": []}})
    manager["access_log"] = [file_log(each) for each in telemetry["accessLog"]["settings"]]
    for each in objects.get("EnvoyPatchPolicy", {}).get("jsonPatches", ()):
        *parents, last = each["operation"]["path"].strip("/").split("/")
        place: Any = listener
        for step in parents:
            place = place[int(step)] if isinstance(place, list) else place[step]
        assert last in place, "a patch may only replace what is there"
        place[last] = each["operation"]["value"]
