"""Correct gateways, routes that change the filter, and false alarms."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from epp.doctor import Level, deployment_checks
from epp.doctor.envoy_checks import CHECKS
from epp.doctor.names import STAGE_HEADERS

from . import (
    test_bodies,
    test_clients,
    test_destination,
    test_health,
    test_limits,
    test_metadata,
    test_picker,
    test_server,
    test_times,
)
from .envoys import DESTINATION, ROUTE, Envoy, make_envoy, rows_of
from .traps import (
    COUNTERS,
    EXT_PROC_PER_ROUTE,
    FILTER_CONFIG,
    FULL_DUPLEX,
    all_of,
    fail_open,
    modes,
    no_header_source,
    nothing,
    wait,
)

OFF = {"picker": {"@type": EXT_PROC_PER_ROUTE, "disabled": True}}

TABLES = (
    test_picker,
    test_bodies,
    test_times,
    test_limits,
    test_health,
    test_destination,
    test_metadata,
    test_clients,
    test_server,
)


def test_every_check_is_documented_once_in_their_order() -> None:
    text = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    checks = [check.name for check in CHECKS]
    checks += [check.name for check in deployment_checks.CHECKS]
    assert re.findall(r"^\| `([a-z][\w-]*)` \|", text, re.M) == checks
    assert len(set(checks)) == len(checks)


def test_every_check_has_a_trap() -> None:
    assert {trap.check for module in TABLES for trap in module.TRAPS} == {
        check.name for check in CHECKS
    }


@pytest.mark.parametrize(
    "change", [nothing, Envoy.buffered, FULL_DUPLEX], ids=["lean", "adaptive", "full duplex"]
)
def test_a_sound_gateway_has_no_trap(change: Callable[[Envoy], object]) -> None:
    envoy = make_envoy()
    change(envoy)
    found = envoy.report(counters=COUNTERS, version=(1, 40, 0))
    assert [(row.check, row.finding.where, row.finding.level) for row in found.rows] == [
        (check.name, "", Level.OK) for check in CHECKS
    ]
    assert found.not_checked == ()


@pytest.mark.parametrize(
    ("check", "change"),
    [
        pytest.param(
            "message-timeout",
            all_of(FULL_DUPLEX, wait(None)),
            id="no timer runs for bodies in full duplex",
        ),
        pytest.param(
            "response-trailers",
            all_of(Envoy.buffered, modes(response_trailer_mode="SKIP")),
            id="a stream with a buffered request ends with its response",
        ),
        pytest.param(
            "buffer-limit",
            lambda e: e.route.pop("request_body_buffer_limit"),
            id="bodies in full duplex are not buffered",
        ),
        pytest.param(
            "buffer-limit",
            all_of(
                Envoy.buffered,
                lambda e: e.route.pop("request_body_buffer_limit"),
                lambda e: e.listener.update(per_connection_buffer_limit_bytes=33554432),
            ),
            id="the listener's limit is large",
        ),
        pytest.param(
            "idle-timeout",
            all_of(
                lambda e: e.manager.pop("stream_idle_timeout"),
                lambda e: e.action.update(idle_timeout="0s"),
            ),
            id="the route has no idle timeout",
        ),
        pytest.param(
            "client-headers",
            all_of(fail_open, lambda e: e.keep()),
            id="failing open with all headers removed",
        ),
        pytest.param(
            "client-headers",
            lambda e: e.keep(*STAGE_HEADERS),
            id="the EPP takes the stages' headers off",
        ),
        pytest.param(
            "client-headers",
            all_of(no_header_source, lambda e: e.keep(DESTINATION)),
            id="a header that nobody reads",
        ),
        pytest.param(
            "picker-bypassed",
            all_of(
                lambda e: e.document["static_resources"]["clusters"].append(
                    {**e.pool, "name": "other", "type": "ORIGINAL_DST"}
                ),
                lambda e: e.host["routes"].insert(
                    0,
                    {"match": {"prefix": "/x"}, "route": {"cluster": "other"}}
                    | {"typed_per_filter_config": OFF},
                ),
                lambda e: e.keep(DESTINATION),
            ),
            id="ORIGINAL_DST by the connection",
        ),
        pytest.param(
            "retry-policy",
            lambda e: e.host.update(retry_policy=e.action.pop("retry_policy")),
            id="the virtual host retries",
        ),
        pytest.param(
            "retry-policy",
            all_of(Envoy.original_dst, lambda e: e.action.pop("retry_policy")),
            id="ORIGINAL_DST has no list to walk",
        ),
        pytest.param(
            "epp-http2",
            lambda e: e.http(e.epp).update(explicit_http_config=None, auto_config={}),
            id="by ALPN, with TLS",
        ),
        pytest.param(
            "epp-http2",
            all_of(
                lambda e: e.epp.pop("typed_extension_protocol_options"),
                lambda e: e.epp.update(http2_protocol_options={}),
            ),
            id="in the old field",
        ),
        pytest.param(
            "upstream-idle",
            lambda e: e.http(e.pool).update(
                explicit_http_config={"http2_protocol_options": {}},
                common_http_protocol_options=None,
            ),
            id="HTTP/2 model servers",
        ),
        pytest.param("destination", Envoy.original_dst, id="ORIGINAL_DST by the header"),
        pytest.param("destination", no_header_source, id="override_host by metadata"),
        pytest.param(
            "picker-bypassed",
            all_of(Envoy.original_dst, nothing),
            id="ORIGINAL_DST behind the EPP alone",
        ),
        pytest.param(
            "picker-bypassed",
            lambda e: e.host["routes"].insert(
                0, {"match": {"path": "/healthz"}, "direct_response": {"status": 200}}
            ),
            id="Envoy answers itself",
        ),
    ],
)
def test_what_looks_like_a_trap_and_is_none(check: str, change: Callable[[Envoy], object]) -> None:
    envoy = make_envoy()
    change(envoy)
    assert [(row.finding.level, row.finding.where) for row in rows_of(envoy.report(), check)] == [
        (Level.OK, "")
    ]


@pytest.mark.parametrize("header_filter", ["before", "behind"])
def test_a_header_filter_helps_only_before_ext_proc(header_filter: str) -> None:
    envoy = make_envoy()
    envoy.keep(DESTINATION)
    kind = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
    mutations = {"request_mutations": [{"remove": DESTINATION.upper()}]}
    item = {"name": "strip", "typed_config": {"@type": kind, "mutations": mutations}}
    envoy.filters.insert(0 if header_filter == "before" else 1, item)
    (row,) = rows_of(envoy.report(), "client-headers")
    assert row.finding.level is (Level.OK if header_filter == "before" else Level.WARNING)


def test_a_route_overrides_the_filter() -> None:
    """As managed gateways do: the filter says nothing, the route says all."""
    envoy = make_envoy()
    settings = {
        name: envoy.picker.pop(name) for name in ("processing_mode", "metadata_options")
    } | {"grpc_service": envoy.picker["grpc_service"], "failure_mode_allow": True}
    envoy.picker["grpc_service"] = {"envoy_grpc": {"cluster_name": "dummy"}}
    envoy.route["typed_per_filter_config"] = {
        "picker": {"@type": EXT_PROC_PER_ROUTE, "overrides": settings}
    }
    found = envoy.report()
    place = f"{ROUTE}.typed_per_filter_config.picker.overrides.failure_mode_allow"
    assert [
        (row.check, row.finding.where) for row in found.rows if row.finding.level is not Level.OK
    ] == [("fail-open", place)]


@pytest.mark.parametrize("on", [True, False])
def test_a_filter_that_is_off_by_default_is_on_where_a_route_says_so(on: bool) -> None:
    envoy = make_envoy()
    envoy.filters[0]["disabled"] = True
    if on:
        envoy.route["typed_per_filter_config"] = {
            "picker": {"@type": FILTER_CONFIG, "config": {"@type": EXT_PROC_PER_ROUTE}}
        }
    assert rows_of(envoy.report(), "picker")[0].finding.level is (Level.OK if on else Level.ERROR)


def test_clusters_with_weights_are_all_looked_at() -> None:
    envoy = make_envoy()
    del envoy.action["cluster"]
    envoy.action["weighted_clusters"] = {
        "clusters": [{"name": "pool", "weight": 70}, {"name": "other", "weight": 30}]
    }
    envoy.document["static_resources"]["clusters"].append({"name": "other", "type": "STATIC"})
    places = [row.finding.where for row in rows_of(envoy.report(), "destination")]
    assert places == ["clusters[other].load_balancing_policy"]


@pytest.mark.parametrize("name", ["picker", "epp"])
def test_one_of_several_filters_is_chosen_by_its_name_or_its_cluster(name: str) -> None:
    envoy = make_envoy()
    other = {**envoy.picker, "grpc_service": {"envoy_grpc": {"cluster_name": "auth"}}}
    other["processing_mode"] = {"request_body_mode": "GRPC"}
    envoy.filters.insert(0, {"name": "auth", "typed_config": other})
    assert envoy.report().count(Level.ERROR) > 0
    assert envoy.report(ext_proc=name).count(Level.ERROR) == 0
