"""Envoy's version, its admin endpoint and its counters."""

import pytest

from .envoys import Envoy
from .traps import Trap, assert_found, counted, nothing, shown, traps

TRAPS = [
    *traps(
        "envoy-version",
        (
            "before full duplex",
            nothing,
            "error",
            "server_info.version",
            "not in Envoy before 1.33",
            {"version": (1, 32, 4)},
        ),
        (
            "before the tested one",
            nothing,
            "warning",
            "server_info.version",
            "tested with 1.40",
            {"version": (1, 36, 0)},
        ),
        (
            "before the tested one, without full duplex",
            Envoy.buffered,
            "warning",
            "server_info.version",
            "Envoy 1.32.4",
            {"version": (1, 32, 4)},
        ),
    ),
    *traps(
        "admin-address",
        *(
            (
                f"all of {address}",
                lambda e, address=address: e.document["admin"]["address"]["socket_address"].update(
                    address=address
                ),
                "warning",
                "admin.address.socket_address.address",
                "127.0.0.1",
            )
            for address in ("0.0.0.0", "::")
        ),
    ),
    *traps(
        "ext-proc-counters",
        *(
            (name, nothing, "warning", name, text, counted(name))
            for name, text in [
                ("http.gateway.ext_proc.streams_failed", "3. Since its start: streams to the EPP"),
                ("http.gateway.ext_proc.spurious_msgs_received", "did not expect"),
                ("http.gateway.ext_proc.message_timeouts", "message_timeout: 1000s"),
                ("http.gateway.ext_proc.rejected_header_mutations", "allow_all_routing"),
                ("http.gateway.ext_proc.failure_mode_allowed", "without the EPP"),
            ]
        ),
    ),
    *traps(
        "counters",
        *(
            (name, nothing, "warning", name, text, counted(name))
            for name, text in [
                ("cluster.epp.upstream_rq_pending_overflow", "max_pending_requests"),
                ("cluster.epp.ssl.connection_error", "plaintext on the other side"),
                ("cluster.pool.original_dst_host_invalid", "a list"),
                ("cluster.pool.upstream_rq_timeout", "route timeout"),
                ("http.gateway.downstream_rq_idle_timeout", "stream_idle_timeout"),
                ("http.gateway.downstream_rq_too_large", "buffer limit"),
            ]
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)
