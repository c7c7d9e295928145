"""Settings of the exchange between replicas, and the form of ``--replica-state``."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import parse_qs, unquote, urlsplit

from epp.inputs import MAX_PORT, Form, Option, Panel
from epp.replication.errors import ReplicaStateError

FLAG: Final = "--replica-state"
_REDIS_PORT: Final = 6379
_PLAIN, _TLS, _FOLDER = ("redis", "valkey"), ("rediss", "valkeys"), ("unix",)
_EXAMPLES: Final = "for example redis://redis:6379, rediss://USER@redis:6380/0 or unix:///run/epp"
_MOST_NAME_CHARS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Settings of the exchange between replicas."""

    replica_state: Annotated[
        str,
        Option(
            "Share requests in flight and prefixes with other replicas, through Redis or Valkey:"
            " redis[s]://[USER@]HOST[:PORT][/DB][?group=NAME] (extra `redis`); or, on one host,"
            " through sockets in a directory: unix:///DIR. Empty: each replica knows only its own.",
            panel=Panel.REPLICAS,
            metavar="URL",
        ),
    ] = ""
    replica_state_password_file: Annotated[
        Path | None,
        Option(
            "File with the password of Redis, read at each connect.",
            panel=Panel.REPLICAS,
            metavar="FILE",
        ),
    ] = None
    replica_state_ca_file: Annotated[
        Path | None,
        Option(
            "CA certificates of Redis, for rediss://; without it those of the system.",
            panel=Panel.REPLICAS,
            metavar="FILE",
        ),
    ] = None
    replica_state_cert_path: Annotated[
        Path | None,
        Option(
            "Directory with tls.crt and tls.key, the client certificate for rediss://.",
            panel=Panel.REPLICAS,
            metavar="DIR",
        ),
    ] = None
    replica_name: Annotated[
        str,
        Option(
            "Name of this replica, different from those of the others; without it the name of the"
            " host and the ext_proc port.",
            panel=Panel.REPLICAS,
            metavar="NAME",
        ),
    ] = ""
    replica_lease_seconds: Annotated[
        float,
        Option(
            "Silence after which the requests in flight of another replica are forgotten, at least"
            " 0.2s.",
            panel=Panel.REPLICAS,
            form=Form.DURATION,
            flag="--replica-lease",
        ),
    ] = 2.0

    def __post_init__(self) -> None:
        if self.replica_lease_seconds < MIN_LEASE_SECONDS:
            raise ReplicaStateError(
                f"--replica-lease is {self.replica_lease_seconds:g}s; it must be at least"
                f" {MIN_LEASE_SECONDS:g}s"
            )
        if len(self.replica_name) > _MOST_NAME_CHARS:
            raise ReplicaStateError(
                f"--replica-name has {len(self.replica_name)} characters; at most"
                f" {_MOST_NAME_CHARS} are allowed"
            )
        if self.replica_state:
            where = replica_state_of(self.replica_state)
            if not (isinstance(where, RedisAddress) and where.is_tls) and (
                self.replica_state_ca_file or self.replica_state_cert_path
            ):
                raise ReplicaStateError(
                    "--replica-state-ca-file and --replica-state-cert-path need"
                    f" {FLAG} rediss://…; this one is without TLS"
                )

    def name_of(self, *, grpc_port: int, socket_file: Path | None) -> str:
        """Return the name of this replica.

        Args:
            grpc_port: The ext_proc port, 0 for any.
            socket_file: The ext_proc socket in place of the port.
        """
        if self.replica_name:
            return self.replica_name
        place = str(socket_file) if socket_file is not None else str(grpc_port or f"#{os.getpid()}")
        return f"{socket.gethostname()}:{place}"[-_MOST_NAME_CHARS:]


MIN_LEASE_SECONDS: Final = 0.2
"""Ten times the pause between two messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A Redis or Valkey server."""

    host: str
    port: int
    database: int
    """Part of the channel names, because publish and subscribe have no databases."""
    username: str
    is_tls: bool
    group: str
    """Replicas of one group share their state; "" for the group named like the pool."""


@dataclass(frozen=True, slots=True)
class SocketFolder:
    """A directory in which each replica of a host has a socket."""

    path: Path


def replica_state_of(text: str) -> RedisAddress | SocketFolder:
    """Return where replicas exchange their state.

    Raises:
        ReplicaStateError: ``text`` is not a valid URL; if it may have a password, the error does
            not show it.
    """
    if _may_have_password(text):
        raise _invalid(
            "a command line is no place for a password; put it into a file and name it with"
            " --replica-state-password-file"
        )
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise _invalid(f"{text!r}: {error}") from error
    if url.fragment:
        raise _invalid(f"{text!r}: unknown part {'#' + url.fragment!r}")
    if url.scheme in _FOLDER:
        if url.netloc or url.query or not url.path.startswith("/") or url.path == "/":
            raise _invalid(f"{text!r} names no directory by its absolute path; {_EXAMPLES}")
        return SocketFolder(Path(unquote(url.path)))
    if url.scheme not in _PLAIN + _TLS:
        raise _invalid(f"{text!r} is of an unknown kind; {_EXAMPLES}")
    if not url.hostname:
        raise _invalid(f"{text!r} names no host; {_EXAMPLES}")
    if port == 0:
        raise _invalid(f"{text!r}: a port is a number from 1 to {MAX_PORT}")
    database = url.path.strip("/") or "0"
    if not (database.isascii() and database.isdigit()):
        raise _invalid(f"{text!r}: the database {database!r} is no number")
    return RedisAddress(
        host=url.hostname,
        port=port or _REDIS_PORT,
        database=int(database),
        username=unquote(url.username or ""),
        is_tls=url.scheme in _TLS,
        group=_group(text, url.query),
    )


def _may_have_password(text: str) -> bool:
    """Return whether a URL, even a misspelt one, has a password.

    ``urlsplit`` finds none if there is a ``/``, ``?`` or ``#`` in it, and takes it for the port.
    """
    rest = text.partition("://")[2] or text
    before_host, at, _ = rest.rpartition("@")
    return (bool(at) and ":" in before_host) or "password=" in rest.lower()


def _group(text: str, query: str) -> str:
    values = parse_qs(query, keep_blank_values=True)
    if unknown := sorted(values.keys() - {"group"}):
        raise _invalid(f"{text!r}: unknown parameter {unknown[0]!r}; there is only `group`")
    return values.get("group", [""])[-1]


def _invalid(text: str) -> ReplicaStateError:
    return ReplicaStateError(f"{FLAG}: {text}")
