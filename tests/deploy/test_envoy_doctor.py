"""The doctor on every file of deploy/envoy, and its findings in broken ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.app import Ports
from epp.doctor import Gateway, Level, examine_envoy, read_file
from epp.lab.envoy import GatewayConfig, GatewayLimits, Mode
from epp.lab.envoy.bootstrap import bootstrap
from epp.lab.envoy.samples import BOOTSTRAPS, SNIPPETS

from .envoy_products import apply_envoy_filter, as_envoy_gateway_would, documents
from .harness import DEPLOY

PORTS = Ports(9002, 9003, 9090)
NOT_REPORTED = [("warning", "served-endpoint")]
"""Envoy Gateway cannot report the endpoint that served; docs/envoy.md."""


def to_mend(path: Path) -> list[tuple[str, str]]:
    return [
        (row.finding.level.value, row.check)
        for row in examine_envoy(Gateway(read_file(path))).rows
        if row.finding.level is not Level.OK
    ]


def plain() -> dict[str, Any]:
    """Return a gateway without an endpoint picker, as a product makes it."""
    limits = GatewayLimits(small_request_bytes=0)
    document = bootstrap(GatewayConfig(endpoints=("127.0.0.1:8000",), limits=limits))
    resources = document["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["early_header_mutation_extensions"], manager["http_filters"][0]
    resources["clusters"] = resources["clusters"][-1:]
    del resources["clusters"][0]["load_balancing_policy"]
    return document


def made_of(name: str) -> dict[str, Any]:
    """Return what Envoy gets from the objects of a file."""
    document = plain()
    objects = documents(name)
    if "EnvoyFilter" in objects:
        apply_envoy_filter(document, objects["EnvoyFilter"])
        return document
    as_envoy_gateway_would(document, objects, PORTS)
    resources = document["static_resources"]
    chain = resources["listeners"][0]["default_filter_chain"]
    removed = objects["ClientTrafficPolicy"]["headers"]["earlyRequestHeaders"]["remove"]
    mutation = {
        "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation."
        "header_mutation.v3.HeaderMutation",
        "mutations": [{"remove": header} for header in removed],
    }
    chain["filters"][0]["typed_config"]["early_header_mutation_extensions"] = [
        {"name": "envoy.http.early_header_mutation.header_mutation", "typed_config": mutation}
    ]
    (picker,) = objects["EnvoyExtensionPolicy"]["extProc"]
    (options,) = resources["clusters"][-1]["typed_extension_protocol_options"].values()
    window = int(picker["backendSettings"]["http2"]["initialStreamWindowSize"])
    http2 = options["explicit_http_config"]["http2_protocol_options"]
    http2["initial_stream_window_size"] = window
    return document


@pytest.mark.parametrize("name", sorted(BOOTSTRAPS))
def test_there_is_nothing_to_mend_in_a_bootstrap(name: str) -> None:
    assert to_mend(DEPLOY / "envoy" / name) == []


@pytest.mark.parametrize("name", sorted(SNIPPETS))
def test_there_is_nothing_to_mend_in_what_envoy_gets_from_the_objects(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(made_of(name)))
    assert to_mend(file) == ([] if name.startswith("istio") else NOT_REPORTED)


def no_route_timeout(manager: dict[str, Any], _: dict[str, Any]) -> None:
    for each in manager["route_config"]["virtual_hosts"][0]["routes"]:
        del each["route"]["timeout"]


def default_circuit_breakers(_: dict[str, Any], servers: dict[str, Any]) -> None:
    del servers["circuit_breakers"]


def no_response_trailers(manager: dict[str, Any], _: dict[str, Any]) -> None:
    (picker,) = (each for each in manager["http_filters"] if each["name"].endswith("ext_proc"))
    picker["typed_config"]["processing_mode"]["response_trailer_mode"] = "SKIP"


@pytest.mark.parametrize("name", sorted(name for name in BOOTSTRAPS if "adaptive" not in name))
@pytest.mark.parametrize(
    ("break_it", "check"),
    [
        (no_route_timeout, "route-timeout"),
        (default_circuit_breakers, "circuit-breakers"),
        (no_response_trailers, "response-trailers"),
    ],
)
def test_a_fault_put_into_a_bootstrap_is_found(
    name: str,
    break_it: Callable[[dict[str, Any], dict[str, Any]], None],
    check: str,
    tmp_path: Path,
) -> None:
    assert BOOTSTRAPS[name].mode is not Mode.ADAPTIVE
    document = yaml.safe_load((DEPLOY / "envoy" / name).read_text())
    resources = document["static_resources"]
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    break_it(manager, resources["clusters"][-1])
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(document))
    assert check in [found for _, found in to_mend(file)]
