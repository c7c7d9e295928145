"""Connections to Redis or Valkey: password, TLS, and what the client must not do by itself."""

import ssl
from pathlib import Path
from typing import Any

from redis.asyncio import Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from epp.replication.errors import ReplicaStateError
from epp.replication.settings import RedisAddress, ReplicaSettings


def connection_pool(
    address: RedisAddress, settings: ReplicaSettings, *, timeout_seconds: float
) -> ConnectionPool:
    """Return an empty pool of connections; reads the password file and the certificates.

    Args:
        address: The server.
        settings: The files.
        timeout_seconds: For connecting, and for each response.

    Raises:
        OSError: The password file cannot be read.
        ReplicaStateError: It is not UTF-8, or a certificate cannot be read.
    """
    kind: dict[str, Any] = {"connection_class": Connection}
    if address.is_tls:
        kind = {"connection_class": _TlsConnection, "context": _tls_context(settings)}
    return ConnectionPool(
        host=address.host,
        port=address.port,
        username=address.username or None,
        password=_password(settings.replica_state_password_file),
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(NoBackoff(), 0),  # RedisCarrier tries again, with jitter
        protocol=2,  # all that publish and subscribe need; older servers have no other
        # It would tell Redis its name: a command that needs another right, and 1 ms on the event
        # loop, in which it reads its version from a file.
        driver_info=None,
        **kind,
    )


class _TlsConnection(SSLConnection):
    """A connection with a given TLS context.

    The client of Redis would make one for each connection, on the event loop, and with all
    authorities of the system: that takes 42 ms.
    """

    def __init__(self, *, context: ssl.SSLContext, **arguments: Any) -> None:  # noqa: ANN401 - of SSLConnection
        super().__init__(**arguments)
        self.ssl_context.context = context


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise ReplicaStateError(f"--replica-state-password-file: {file} is not UTF-8") from error


def _tls_context(settings: ReplicaSettings) -> ssl.SSLContext:
    authorities, own = settings.replica_state_ca_file, settings.replica_state_cert_path
    try:
        context = ssl.create_default_context(cafile=authorities)
        if own is not None:
            context.load_cert_chain(own / "tls.crt", own / "tls.key")
    except OSError as error:
        files = ", ".join(str(each) for each in (authorities, own) if each is not None)
        raise ReplicaStateError(
            f"a certificate for --replica-state cannot be read ({files}): {error}"
        ) from error
    return context
