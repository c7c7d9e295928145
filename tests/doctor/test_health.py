"""Whether the endpoint picker's health is checked, with a safe check that it answers."""

import copy
from typing import Any

import pytest

from epp.doctor.names import EXT_PROC_SERVICE, READINESS_SERVICES
from epp.health import EXT_PROC_SERVICE as SERVED_SERVICE
from epp.health import HealthService

from .envoys import Envoy, Json, level_of, make_envoy, rows_of
from .traps import COUNTERS, Trap, all_of, assert_found, fail_open, shown, traps

CHECKS = "clusters[epp].health_checks"
GRPC = f"{CHECKS}[0].grpc_health_check"
PANIC = "clusters[epp].common_lb_config.healthy_panic_threshold"


def two(envoy: Envoy) -> None:
    (locality,) = envoy.epp["load_assignment"]["endpoints"]
    locality["lb_endpoints"].append(copy.deepcopy(locality["lb_endpoints"][0]))


def by_name(envoy: Envoy) -> None:
    envoy.epp["type"] = "STRICT_DNS"


def checked(envoy: Envoy, **check: Any) -> None:
    """Check the endpoint picker as `epp envoy-config` does, or as given."""
    service: Json = {"grpc_health_check": {"service_name": EXT_PROC_SERVICE}}
    given = check or service
    envoy.epp["health_checks"] = [{"no_traffic_interval": "2s", **given}]
    envoy.epp["common_lb_config"] = {"healthy_panic_threshold": {"value": 1}}


def asks(service: str) -> Any:
    return lambda envoy: checked(envoy, grpc_health_check={"service_name": service})


def panics(percent: float | None) -> Any:
    threshold = {} if percent is None else {"value": percent}
    change = {"healthy_panic_threshold": threshold}
    return lambda envoy: envoy.epp.update(common_lb_config=change)


def on_port(port: int) -> Any:
    def change(envoy: Envoy) -> None:
        (locality,) = envoy.epp["load_assignment"]["endpoints"]
        for host in locality["lb_endpoints"]:
            host["endpoint"]["health_check_config"] = {"port_value": port}

    return change


HOST = "clusters[epp].load_assignment.endpoints[0].lb_endpoints[0].endpoint"

TRAPS = [
    *traps(
        "epp-health",
        ("two addresses", two, "warning", CHECKS, "2 EPPs, and no health check"),
        ("a name", by_name, "ok", CHECKS, "keeps its share"),
    ),
    *traps(
        "epp-health-request",
        ("the port of ext_proc", checked, "ok", GRPC, "only with --health-checking"),
        (
            "liveness",
            asks("liveness"),
            "warning",
            f"{GRPC}.service_name",
            "while the EPP drains",
        ),
        ("another name", asks("epp"), "warning", f"{GRPC}.service_name", "NOT_FOUND"),
        (
            "HTTP",
            lambda e: checked(e, http_health_check={"path": "/health"}),
            "warning",
            f"{CHECKS}[0].http_health_check",
            "never passes",
        ),
        (
            "TCP",
            lambda e: checked(e, tcp_health_check={}),
            "warning",
            f"{CHECKS}[0].tcp_health_check",
            "passes while the EPP hangs",
        ),
        (
            "TLS to the health port",
            all_of(checked, on_port(9003)),
            "warning",
            f"{HOST}.health_check_config.port_value",
            "speaks plaintext",
        ),
        (
            "once a minute",
            all_of(checked, lambda e: e.epp["health_checks"][0].pop("no_traffic_interval")),
            "ok",
            f"{CHECKS}[0].no_traffic_interval",
            "once a minute",
        ),
    ),
    *traps(
        "epp-health-effect",
        ("none is used", all_of(checked, panics(0)), "warning", PANIC, "fail with 500"),
        ("0 as default", all_of(checked, panics(None)), "warning", PANIC, "fail with 500"),
        (
            "half of them",
            all_of(checked, lambda e: e.epp.pop("common_lb_config")),
            "ok",
            PANIC,
            "is 50: ",
        ),
    ),
    *traps(
        "epp-health-counters",
        (
            "none passes",
            checked,
            "warning",
            "cluster.epp.membership_healthy",
            "--health-checking",
            {"counters": {**COUNTERS, "cluster.epp.membership_healthy": 0}},
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)


def test_a_single_endpoint_picker_needs_no_health_check() -> None:
    (row,) = rows_of(make_envoy().report(), "epp-health")
    assert row.finding.found == "the health of several EPPs is checked, or there is only one"


def test_two_that_are_checked_are_fine() -> None:
    envoy = make_envoy()
    two(envoy)
    checked(envoy)
    passing = {"cluster.epp.membership_healthy": 2}
    found = envoy.report(counters=passing)
    for check in ("epp-health", "epp-health-request", "epp-health-effect", "epp-health-counters"):
        assert level_of(found, check) == "ok"


def test_a_gateway_that_fails_open_may_do_without_any() -> None:
    envoy = make_envoy()
    all_of(checked, panics(0), fail_open)(envoy)
    assert level_of(envoy.report(), "epp-health-effect") == "ok"


def test_the_plaintext_health_port_is_fine_with_a_socket_of_its_own() -> None:
    envoy = make_envoy()
    all_of(checked, on_port(9003))(envoy)
    envoy.epp["health_checks"][0]["transport_socket_match_criteria"] = {"health": True}
    assert level_of(envoy.report(), "epp-health-request") == "ok"


@pytest.mark.parametrize("name", READINESS_SERVICES)
def test_the_services_follow_the_readiness_of_an_endpoint_picker(name: str) -> None:
    assert HealthService(lambda: True).status(name) == 1
    assert HealthService(lambda: False).status(name) == 2
    assert SERVED_SERVICE in READINESS_SERVICES
