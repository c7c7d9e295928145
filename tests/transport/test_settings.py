"""Settings and statistics."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from epp.transport import GrpcLimits, Stream, Timeouts, TransportSettings
from epp.transport.http2 import ConnectionLimits
from tools.harness.in_memory import InMemory, connect
from tools.harness.raw_client import METHOD, Echo, call, data, fields, headers, message, reset


def test_settings_can_be_given_by_name() -> None:
    values = {"max_connections": 7, "idle_seconds": 5, "max_message_bytes": 100}
    given = TransportSettings().with_values(values | {"max_frame_bytes": 20000})
    assert given == TransportSettings(
        max_connections=7,
        timeouts=Timeouts(idle_seconds=5),
        messages=GrpcLimits(max_message_bytes=100),
        connection=ConnectionLimits(max_frame_bytes=20000),
    )


def test_every_setting_has_a_name_of_its_own_and_a_default() -> None:
    names = TransportSettings.names()
    assert names["max_connections"] == 1024
    assert names["preface_seconds"] == 10.0
    assert TransportSettings().with_values(names) == TransportSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_connections", 0),
        ("header_cache_bytes", -1),
        ("idle_seconds", 0),
        ("keepalive_timeout_seconds", -1),
        ("max_message_bytes", 0),
        ("stream_window_bytes", 0),
        ("control_frame_budget", -5),
    ],
)
def test_setting_out_of_its_range_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        TransportSettings().with_values({name: value})


def test_settings_cannot_be_changed_in_place() -> None:
    given = TransportSettings()
    with pytest.raises(AttributeError):
        given.max_connections = 5  # type: ignore[misc]
    assert replace(given, max_connections=5).max_connections == 5


class Failing(Echo):
    """Raises if the message says so."""

    def message(self, data: bytes) -> None:
        if data == b"fail":
            raise ZeroDivisionError
        super().message(data)


def make() -> InMemory:
    def opened(stream: Stream, metadata: Mapping[str, str]) -> Echo:
        return Failing(stream, metadata)

    return connect({METHOD: opened})


def test_statistics_of_state_and_counts() -> None:
    client = make()
    with capture_logs():
        client.send(call(1, b"hello"))
        client.send(call(3, b"fail"))
        client.send(headers(5, fields("/other"), end=True))
        client.send(headers(7), data(7, message(b"", flag=9), end=True))
        client.send(headers(9), reset(9))
        client.send(headers(11), data(11, message(b"answered")))
        client.send(reset(11))
        client.send(headers(13, fields(grpc_timeout="1S")))
        client.timers.run()
        client.send(headers(15), headers(15))
        client.send(headers(17), data(17, message(b"open")))
    found = client.server.statistics()
    assert (found.connections, found.connections_total) == (1, 1)
    assert (found.streams, found.streams_total) == (1, 9)
    assert found.waiting_bytes == 0
    assert found.refused == {
        "connection": 0,
        "handshake": 0,
        "stream": 0,
        "header_list": 0,
        "call": 1,
        "message": 1,
        "sent_message": 0,
    }
    assert found.broken_off == {
        "client_reset": 1,
        "client_fault": 1,
        "deadline": 1,
        "unread_responses": 0,
        "handler_failure": 1,
    }
    assert set(found.ended.values()) == {0}
    assert found.header_cache_hits > 0


def test_statistics_count_how_connections_ended() -> None:
    client = make()
    with capture_logs():
        client.send(data(1))
    assert client.server.statistics().ended["PROTOCOL_ERROR"] == 1
    client.protocol.connection_lost(None)
    assert (client.server.statistics().connections, client.server.statistics().streams) == (0, 0)
