"""--replica-state and related options."""

import socket
from pathlib import Path

import pytest

from epp.replication import ReplicaSettings, ReplicaStateError, open_replica
from epp.replication.settings import RedisAddress, SocketFolder, replica_state_of


def address(**fields: object) -> RedisAddress:
    return RedisAddress(
        **{  # type: ignore[arg-type] # fields of an address
            "host": "redis",
            "port": 6379,
            "database": 0,
            "username": "",
            "is_tls": False,
            "group": "",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("redis://redis", address(), id="host alone"),
        pytest.param("valkey://redis:7000/3", address(port=7000, database=3), id="valkey"),
        pytest.param(
            "rediss://us%40er@redis/?group=blue",
            address(is_tls=True, username="us@er", group="blue"),
            id="TLS, user, group",
        ),
        pytest.param("redis://[::1]:6380", address(host="::1", port=6380), id="IPv6"),
        pytest.param("unix:///run/epp", SocketFolder(Path("/run/epp")), id="directory"),
    ],
)
def test_urls(text: str, want: object) -> None:
    assert replica_state_of(text) == want


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("redis", "is of an unknown kind; for example redis://", id="no URL"),
        pytest.param("http://redis", "is of an unknown kind", id="another scheme"),
        pytest.param("redis://", "names no host", id="no host"),
        pytest.param("redis://redis:x", "Port could not be cast", id="no port"),
        pytest.param("redis://redis:0", "a port is a number from 1", id="port 0"),
        pytest.param("redis://redis/two", "the database 'two' is no number", id="database"),
        pytest.param("redis://redis?grup=a", "unknown parameter 'grup'", id="parameter"),
        pytest.param("redis://redis/0#1", "unknown part '#1'", id="fragment"),
        pytest.param("unix://run/epp", "names no directory by its absolute path", id="relative"),
        pytest.param("unix:///", "names no directory", id="root"),
    ],
)
def test_invalid_urls_are_explained(text: str, why: str) -> None:
    with pytest.raises(ReplicaStateError, match=r"^--replica-state: ") as raised:
        ReplicaSettings(replica_state=text)
    assert why in str(raised.value)


def test_a_password_on_the_command_line_is_refused_and_not_shown() -> None:
    with pytest.raises(ReplicaStateError, match="--replica-state-password-file") as raised:
        ReplicaSettings(replica_state="redis://:secret@redis")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("redis://user:se/cret@redis:6379", id="a slash in the password"),
        pytest.param("redis://user:12/cret@redis:6379", id="a port before the slash"),
        pytest.param("redis://user:12#cret@redis", id="a hash sign in the password"),
        pytest.param("redis://user:se?cret@redis", id="a question mark in the password"),
        pytest.param("redis:user:secret@redis", id="no slashes"),
        pytest.param("user:secret@redis:6379", id="no scheme"),
        pytest.param("redis://redis?password=secret", id="a parameter"),
    ],
)
def test_a_password_in_a_misspelt_url_is_not_shown(text: str) -> None:
    with pytest.raises(ReplicaStateError, match="--replica-state-password-file") as raised:
        ReplicaSettings(replica_state=text)
    assert "cret" not in str(raised.value)


@pytest.mark.parametrize("option", ["replica_state_ca_file", "replica_state_cert_path"])
def test_certificates_without_tls_are_refused(option: str) -> None:
    with pytest.raises(ReplicaStateError, match="need --replica-state rediss://"):
        ReplicaSettings(replica_state="redis://redis", **{option: Path("x")})  # type: ignore[arg-type]
    ReplicaSettings(replica_state="rediss://redis", **{option: Path("x")})  # type: ignore[arg-type]


def test_a_lease_shorter_than_ten_messages_is_refused() -> None:
    with pytest.raises(ReplicaStateError, match=r"--replica-lease is 0\.1s; it must be at least"):
        ReplicaSettings(replica_lease_seconds=0.1)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ReplicaStateError, match="--replica-name has 201 characters"):
        ReplicaSettings(replica_name="x" * 201)


def test_a_name_stays_the_same_over_restarts_if_the_port_does() -> None:
    host, settings = socket.gethostname(), ReplicaSettings()
    assert settings.name_of(grpc_port=9002, socket_file=None) == f"{host}:9002"
    assert settings.name_of(grpc_port=0, socket_file=None).startswith(f"{host}:#")
    assert settings.name_of(grpc_port=1, socket_file=Path("/run/x")) == f"{host}:/run/x"
    assert ReplicaSettings(replica_name="n").name_of(grpc_port=1, socket_file=None) == "n"


def test_without_a_url_nothing_is_shared() -> None:
    assert open_replica(ReplicaSettings(), group="", grpc_port=1, socket_file=None) is None


def test_without_the_client_of_redis_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "epp.replication.redis_channel", None)
    settings = ReplicaSettings(replica_state="redis://redis")
    with pytest.raises(ReplicaStateError, match=r"pip install 'endpoint-picker\[redis\]'"):
        open_replica(settings, group="", grpc_port=1, socket_file=None)
