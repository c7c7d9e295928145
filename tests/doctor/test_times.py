"""Time limits."""

from math import inf

import pytest

from epp.doctor import Gateway, examine_envoy
from epp.doctor.sources import source

from .envoys import HTTP, MANAGER, PICKER, ROUTE, Envoy, make_envoy, rows_of
from .traps import Trap, all_of, assert_found, shown, traps, wait

TRAPS = [
    *traps(
        "message-timeout",
        (
            "the default for buffered bodies",
            all_of(Envoy.buffered, wait(None)),
            "error",
            f"{PICKER}.message_timeout",
            "message_timeout is not set, so 0.2 s",
        ),
        (
            "half a minute for buffered bodies",
            all_of(Envoy.buffered, wait("30s")),
            "warning",
            f"{PICKER}.message_timeout",
            "message_timeout: 30s",
        ),
        (
            "the default for lean",
            wait(None),
            "warning",
            f"{PICKER}.message_timeout",
            "for the response headers",
        ),
    ),
    *traps(
        "route-timeout",
        (
            "the default",
            lambda e: e.action.pop("timeout"),
            "error",
            f"{ROUTE}.route.timeout",
            "timeout is not set, so 15 s",
        ),
        (
            "five minutes",
            lambda e: e.action.update(timeout="300s"),
            "warning",
            f"{ROUTE}.route.timeout",
            "timeout: 300s",
        ),
        (
            "of each try",
            lambda e: e.action["retry_policy"].update(per_try_timeout="30s"),
            "warning",
            f"{ROUTE}.route.retry_policy.per_try_timeout",
            "Take per_try_timeout out",
        ),
    ),
    *traps(
        "idle-timeout",
        (
            "the default",
            lambda e: e.manager.pop("stream_idle_timeout"),
            "warning",
            f"{MANAGER}.stream_idle_timeout",
            "not set, so 300 s",
        ),
        (
            "of a route",
            lambda e: e.action.update(idle_timeout="60s"),
            "warning",
            f"{ROUTE}.route.idle_timeout",
            "idle_timeout: 60s",
        ),
    ),
    *traps(
        "stream-duration",
        (
            "of the connection manager",
            lambda e: e.manager.update(common_http_protocol_options={"max_stream_duration": "60s"}),
            "warning",
            f"{MANAGER}.common_http_protocol_options.max_stream_duration",
            "are reset",
        ),
        (
            "of a route",
            lambda e: e.action.update(max_stream_duration={"max_stream_duration": "60s"}),
            "warning",
            f"{ROUTE}.route.max_stream_duration.max_stream_duration",
            "are reset",
        ),
        (
            "of the EPP's cluster",
            lambda e: e.http(e.epp).update(
                common_http_protocol_options={"max_stream_duration": "60s"}
            ),
            "warning",
            f"clusters[epp].{HTTP}.common_http_protocol_options.max_stream_duration",
            "are reset",
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)


@pytest.mark.parametrize(
    ("timeout", "queued_seconds", "level", "text"),
    [
        pytest.param("30s", 20.0, "ok", "", id="longer than the queue's limit"),
        pytest.param("30s", 0.0, "ok", "", id="nothing waits"),
        pytest.param("30s", 45.0, "warning", "wait there for 45 s", id="shorter than it"),
        pytest.param("5s", 45.0, "error", "wait there for 45 s", id="far shorter"),
        pytest.param("1000s", 1800.0, "warning", "Set message_timeout: 1801s", id="a long limit"),
        pytest.param("999s", inf, "warning", "wait there for ever", id="no limit"),
        pytest.param("1000s", inf, "ok", "", id="no limit, and as long as is recommended"),
    ],
)
def test_message_timeout_is_held_against_the_limit_of_the_queue(
    timeout: str, queued_seconds: float, level: str, text: str
) -> None:
    envoy = make_envoy()
    all_of(Envoy.buffered, wait(timeout))(envoy)
    gateway = Gateway(source(envoy.document, "test"), queued_seconds=queued_seconds)
    (row,) = rows_of(examine_envoy(gateway), "message-timeout")
    assert row.finding.level.value == level
    assert text in f"{row.finding.why} {row.finding.mend}"
