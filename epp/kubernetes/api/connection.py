"""Finds the API server and the credentials, in the same way as kubectl and the Go clients.

``KUBECONFIG`` comes first, then the service account of the pod, then ``~/.kube/config``. lightkube
supplies TLS and authentication, httpx2 the connections. Proxies come from ``proxy-url`` alone; the
environment's proxies are not used.
"""

import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import httpcore2  # noqa: F401 - httpx2 would import it on the event loop, and that blocks
import httpx2
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.models import NameValue, User, UserExec
from lightkube.core.exceptions import ConfigError

from epp.kubernetes.api.errors import ConfigurationError
from epp.kubernetes.api.followed_files import FollowedFiles
from epp.kubernetes.api.kubeconfig import KubeconfigCluster, Selected, read_kubeconfig
from epp.kubernetes.api.token_file import TokenFileAuth

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts the credentials of a pod."""

_SCHEMES: Final = frozenset({"http", "https"})

_REMEDY: Final = (
    "set KUBECONFIG to a kubeconfig file, or run in a pod with a service account token mounted"
)


_PEER_TIMEOUT_SECONDS: Final = 20
_PROBE_IDLE_SECONDS: Final = 10
_PROBE_INTERVAL_SECONDS: Final = 5


def _socket_options() -> list[tuple[int, int, int]]:
    """Return options with which the kernel reports a vanished peer within 25 s.

    A watch may be silent for a minute even if all is well, so silence is no sign of a failure. The
    kernel asks the peer's kernel instead: on an idle connection by TCP keepalive after 10 s and
    every 5 s, and TCP_USER_TIMEOUT ends the connection when nothing has been acknowledged for 20 s,
    data included. Measured with a peer behind a black hole: the connection is lost after 18 s, and
    the fault is reported after 24 s, because connecting takes 5 s to fail.
    """
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        (
            "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE",
            _PROBE_IDLE_SECONDS,
        ),
        ("TCP_KEEPINTVL", _PROBE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", 2),  # where there is no TCP_USER_TIMEOUT
        ("TCP_USER_TIMEOUT", 1000 * _PEER_TIMEOUT_SECONDS),
    ):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An API server and how to authenticate to it."""

    server: str
    """URL; it may have a path."""
    source: str
    """Where the configuration was found, for messages."""
    namespace: str | None
    """Namespace of the current context or of the pod; None if it names none."""
    tls: ssl.SSLContext
    auth: httpx2.Auth | None
    server_name: str | None
    """The name to expect in the server's certificate instead of the host's."""
    proxy: str | None
    user_agent: str
    files: tuple[FollowedFiles, ...]
    """The files that it was read from, except for the token, which is followed separately; one
    client follows them."""
    reload: Callable[[], "Connection"]
    """Read the same context of the files again; blocks, and may raise ``ConfigurationError``."""
    clock: Callable[[], float]
    """Monotonic seconds, for the time since the files were last looked at."""

    def open(self) -> httpx2.AsyncClient:
        """Return a client; the caller closes it, and sets the time limits of calls."""
        return httpx2.AsyncClient(
            base_url=self.server,
            auth=self.auth,
            headers={"user-agent": self.user_agent, "accept-encoding": "identity"},
            timeout=None,
            trust_env=False,  # it would read ~/.netrc in each call
            transport=httpx2.AsyncHTTPTransport(
                verify=self.tls,
                proxy=self.proxy,
                socket_options=_socket_options(),
                # Each watch occupies a connection.
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=4),
            ),
        )


def load_connection(
    environ: Mapping[str, str] = os.environ,
    *,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
) -> Connection:
    """Find and read the configuration; blocks.

    Args:
        environ: For ``KUBECONFIG`` and ``KUBERNETES_SERVICE_HOST`` and ``_PORT``.
        home: For ``.kube/config``; None for that of the user.
        service_account: Folder with ``token``, ``ca.crt`` and ``namespace``.
        clock: Monotonic clock in seconds, for the age of the token and of the other files.

    Raises:
        ConfigurationError: There is none, or it is unusable.
    """
    given = [Path(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if given:
        if not any(path.exists() for path in given):
            names = ", ".join(map(str, given))
            raise ConfigurationError(f"KUBECONFIG names no file that exists: {names}; {_REMEDY}")
        return _of_files(given, clock)
    host, port = (environ.get(f"KUBERNETES_SERVICE_{each}", "") for each in ("HOST", "PORT"))
    token = service_account / "token"
    if host and port and token.exists():
        return _in_cluster(host, port, service_account, clock)
    default = (home or Path.home()) / ".kube" / "config"
    if default.exists():
        return _of_files([default], clock)
    missing = f"{token} does not exist" if host and port else "KUBERNETES_SERVICE_HOST is not set"
    raise ConfigurationError(
        "no configuration of a Kubernetes client found: KUBECONFIG is not set, "
        f"{missing}, {default} does not exist; {_REMEDY}"
    )


def _of_files(paths: list[Path], clock: Callable[[], float], context_name: str = "") -> Connection:
    kubeconfig = FollowedFiles(paths)
    selected = read_kubeconfig(paths, context_name)
    names = ", ".join(map(str, paths))
    return _connection(
        selected,
        f"{names}, context {selected.context_name}",
        kubeconfig,
        # The same context: `kubectl config use-context` does not affect running processes.
        lambda: _of_files(paths, clock, selected.context_name),
        clock,
    )


def _in_cluster(
    host: str, port: str, service_account: Path, clock: Callable[[], float]
) -> Connection:
    address = f"[{host}]" if ":" in host else host
    cluster = KubeconfigCluster(
        server=f"https://{address}:{port}", certificate_auth=str(service_account / "ca.crt")
    )
    try:
        namespace = (service_account / "namespace").read_text("utf-8").strip()
    except OSError:
        namespace = ""  # it only provides a default
    user = User(token_file=str(service_account / "token"))
    selected = Selected("in-cluster", cluster, user, namespace or None)
    return _connection(
        selected,
        f"service account in {service_account}",
        FollowedFiles([]),
        lambda: _in_cluster(host, port, service_account, clock),
        clock,
    )


def _connection(
    selected: Selected,
    source: str,
    kubeconfig: FollowedFiles,
    reload: Callable[[], Connection],
    clock: Callable[[], float],
) -> Connection:
    cluster, user = selected.cluster, selected.user
    if cluster.certificate_auth_data:
        cluster.certificate_auth = None  # as for kubectl; lightkube would prefer the file
    try:
        _check_completeness(cluster, user)
        certificates = FollowedFiles(_files(cluster, user))
        for path in certificates.paths:
            path.read_bytes()  # OpenSSL's own error does not name the file
        connection = Connection(
            server=cluster.server,
            source=source,
            namespace=selected.namespace,
            tls=verify_cluster(cluster, user, lambda path: path),  # paths are absolute already
            auth=_auth(user, clock),
            server_name=cluster.tls_server_name or None,
            proxy=cluster.proxy_url or None,
            user_agent=f"epp/{version('endpoint-picker')}",
            files=(kubeconfig, certificates),
            reload=reload,
            clock=clock,
        )
    # ssl.SSLError is an OSError; bad base64 is a ValueError.
    except (ConfigError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise ConfigurationError(f"{source} is unusable: {error}") from error
    for files in connection.files:
        files.mark_read()
    return connection


def _check_completeness(cluster: KubeconfigCluster, user: User) -> None:
    """Find faults that lightkube would report without a name, or only in the first call."""
    has_certificate = bool(user.client_cert or user.client_cert_data)
    if has_certificate != bool(user.client_key or user.client_key_data):
        raise ConfigError("a client certificate and its key go together")
    for url in filter(None, (cluster.server, cluster.proxy_url)):
        if httpx2.URL(url).scheme not in _SCHEMES:
            raise ConfigError(f"{url} is no http or https URL")


def _files(cluster: KubeconfigCluster, user: User) -> list[Path]:
    paths = (cluster.certificate_auth, user.client_cert, user.client_key)
    return [Path(path) for path in paths if path]


def _auth(user: User, clock: Callable[[], float]) -> httpx2.Auth | None:
    if user.token_file:
        return TokenFileAuth(Path(user.token_file), clock)
    if user.exec is not None:
        user.exec = _speaking_v1beta1(user.exec)
    return user_auth(user)


def _speaking_v1beta1(plugin: UserExec) -> UserExec:
    """Return ``plugin`` in the only version that lightkube supports; tokens are the same in v1."""
    # Some plugins, such as kubelogin, refuse to run without this variable.
    info = {
        "apiVersion": plugin.apiVersion,
        "kind": "ExecCredential",
        "spec": {"interactive": False},
    }
    variable = NameValue("KUBERNETES_EXEC_INFO", json.dumps(info))
    known = plugin.apiVersion.removesuffix("/v1")
    return UserExec(
        apiVersion=f"{known}/v1beta1" if known != plugin.apiVersion else plugin.apiVersion,
        command=plugin.command,
        args=plugin.args,
        env=[variable, *(plugin.env or ())],
    )
