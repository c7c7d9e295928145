"""Which parts of a message Envoy sends."""

import pytest

from .envoys import MANAGER, ROUTE, Envoy, level_of, make_envoy
from .traps import MODES, Trap, all_of, assert_found, modes, shown, traps


def send_ahead(envoy: Envoy) -> None:
    """STREAMED, without waiting for the response to the headers."""
    envoy.mode.update(request_body_mode="STREAMED")
    envoy.picker.update(send_body_without_waiting_for_header_response=True)


TRAPS = [
    *traps(
        "request-headers",
        (
            "none",
            modes(request_header_mode="SKIP"),
            "error",
            f"{MODES}.request_header_mode",
            "Set processing_mode.request_header_mode: SEND",
        ),
    ),
    *traps(
        "request-body",
        *(
            (f"{name}", change, level, f"{MODES}.request_body_mode", text)
            for name, change, level, text in [
                ("none", modes(request_body_mode="NONE"), "warning", "by the headers alone"),
                ("left out", lambda e: e.mode.pop("request_body_mode"), "warning", "NONE"),
                ("streamed", modes(request_body_mode="STREAMED"), "error", "with a 500"),
                (
                    "streamed without waiting",
                    send_ahead,
                    "warning",
                    "no advantage",
                ),
                ("partial", modes(request_body_mode="BUFFERED_PARTIAL"), "error", "cut off"),
                ("gRPC", modes(request_body_mode="GRPC"), "error", "BUFFERED"),
                ("as a number", lambda e: e.mode.update(request_body_mode=1), "error", "STREAMED"),
            ]
        ),
    ),
    *traps(
        "request-trailers",
        (
            "full duplex without",
            modes(request_trailer_mode="SKIP"),
            "error",
            f"{MODES}.request_trailer_mode",
            "Set processing_mode.request_trailer_mode: SEND",
        ),
        (
            "full duplex, left out",
            lambda e: e.mode.pop("request_trailer_mode"),
            "error",
            f"{MODES}.request_trailer_mode",
            "Envoy refuses this",
        ),
    ),
    *traps(
        "response-headers",
        (
            "none",
            modes(response_header_mode="SKIP"),
            "warning",
            f"{MODES}.response_header_mode",
            "Set processing_mode.response_header_mode: SEND",
        ),
    ),
    *traps(
        "response-body",
        *(
            (name, modes(response_body_mode=name), level, f"{MODES}.response_body_mode", text)
            for name, level, text in [
                ("BUFFERED", "error", "no token before the last"),
                ("BUFFERED_PARTIAL", "error", "no token before the last"),
                ("GRPC", "error", "Set processing_mode.response_body_mode: NONE"),
                ("STREAMED", "warning", "holds each chunk"),
            ]
        ),
    ),
    *traps(
        "response-trailers",
        (
            "lean without",
            modes(response_trailer_mode="SKIP"),
            "error",
            f"{MODES}.response_trailer_mode",
            "at the response's first byte",
        ),
        (
            "lean, left out",
            lambda e: e.mode.pop("response_trailer_mode"),
            "error",
            f"{MODES}.response_trailer_mode",
            "Set processing_mode.response_trailer_mode: SEND",
        ),
        (
            "full duplex without",
            modes(response_body_mode="FULL_DUPLEX_STREAMED", response_trailer_mode="SKIP"),
            "error",
            f"{MODES}.response_trailer_mode",
            "Envoy refuses this",
        ),
    ),
    *traps(
        "buffer-limit",
        (
            "the default",
            all_of(Envoy.buffered, lambda e: e.route.pop("request_body_buffer_limit")),
            "error",
            "listeners[gateway].per_connection_buffer_limit_bytes",
            "not set, so 1 MiB",
        ),
        (
            "small for a listener",
            all_of(
                Envoy.buffered,
                lambda e: e.route.pop("request_body_buffer_limit"),
                lambda e: e.listener.update(per_connection_buffer_limit_bytes=32768),
            ),
            "error",
            "listeners[gateway].per_connection_buffer_limit_bytes",
            "32768 bytes",
        ),
        (
            "small for a virtual host",
            all_of(
                Envoy.buffered,
                lambda e: e.route.pop("request_body_buffer_limit"),
                lambda e: e.host.update(request_body_buffer_limit="65536"),
            ),
            "error",
            f"{MANAGER}.route_config.virtual_hosts[all].request_body_buffer_limit",
            "413",
        ),
        (
            "the default, sent ahead",
            all_of(send_ahead, lambda e: e.route.pop("request_body_buffer_limit")),
            "error",
            "listeners[gateway].per_connection_buffer_limit_bytes",
            "hang until message_timeout",
        ),
        (
            "small for a route, sent ahead",
            all_of(send_ahead, lambda e: e.route.update(request_body_buffer_limit=65536)),
            "error",
            f"{ROUTE}.request_body_buffer_limit",
            "65536 bytes",
        ),
    ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=shown)
def test_a_trap_is_found_where_it_is(trap: Trap) -> None:
    assert_found(trap)


@pytest.mark.parametrize("limit", [2**20 + 1, 33554432])
def test_a_raised_limit_is_enough_for_bodies_that_are_sent_ahead(limit: int) -> None:
    envoy = make_envoy()
    send_ahead(envoy)
    envoy.route.update(request_body_buffer_limit=limit)
    assert level_of(envoy.report(), "buffer-limit") == "ok"


def test_a_body_that_is_not_sent_ahead_needs_no_buffer() -> None:
    envoy = make_envoy()
    envoy.mode.update(request_body_mode="STREAMED")
    del envoy.route["request_body_buffer_limit"]
    assert level_of(envoy.report(), "buffer-limit") == "ok"
