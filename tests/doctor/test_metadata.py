"""Metadata in both directions, and client headers."""

import pytest

from .envoys import DESTINATION, PICKER, POLICY, Envoy
from .traps import (
    EARLY,
    Trap,
    all_of,
    assert_found,
    fail_open,
    forward,
    no_header_source,
    receive_nothing,
    shown,
    traps,
    write_subset,
)

TRAPS = [
    *traps(
        "receiving-namespaces",
        (
            "none, with the header as a source",
            receive_nothing,
            "warning",
            f"{PICKER}.metadata_options.receiving_namespaces.untyped",
            "Set metadata_options.receiving_namespaces.untyped: [envoy.lb]",
        ),
        (
            "none, with metadata as the only source",
            all_of(receive_nothing, no_header_source),
            "error",
            f"{PICKER}.metadata_options.receiving_namespaces.untyped",
            "no pick is followed",
        ),
    ),
    *traps(
        "forwarding-namespaces",
        (
            "no metadata options",
            all_of(lambda e: e.picker.pop("metadata_options")),
            "warning",
            f"{PICKER}.metadata_options.forwarding_namespaces.untyped",
            "which endpoint served",
        ),
        (
            "no subset",
            forward("envoy.lb"),
            "ok",
            f"{PICKER}.metadata_options.forwarding_namespaces.untyped",
            "narrows the endpoints",
        ),
        (
            "no subset, though one is written",
            all_of(forward("envoy.lb"), write_subset),
            "error",
            f"{PICKER}.metadata_options.forwarding_namespaces.untyped",
            "outside the subset",
        ),
    ),
    *traps(
        "served-endpoint",
        (
            "not noted",
            lambda e: e.policy.pop("selected_host_key"),
            "warning",
            f"{POLICY}.selected_host_key",
            "x-gateway-destination-endpoint-served",
        ),
    ),
    *traps(
        "client-headers",
        (
            "the destination",
            lambda e: e.keep(DESTINATION),
            "warning",
            EARLY,
            f"mutations: [{{remove: {DESTINATION}}}]",
        ),
        (
            "the destination, failing open",
            all_of(Envoy.buffered, fail_open, lambda e: e.keep(DESTINATION)),
            "error",
            EARLY,
            "the client says where Envoy goes",
        ),
        (
            "a stage's, failing open",
            all_of(Envoy.buffered, fail_open, lambda e: e.keep("x-prefiller-host-port")),
            "warning",
            EARLY,
            "x-prefiller-host-port not removed",
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)
