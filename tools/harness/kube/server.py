"""A real API server: etcd and kube-apiserver on free loopback ports, in a temporary folder.

The kube-apiserver can be killed, stopped, suspended and started again; it keeps its port, and etcd
keeps the objects. There are no controllers and no kubelet: pods have the status that a test gives
them, and the objects of a deleted namespace stay.
"""

import json
import secrets
import signal
import ssl
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import httpx

from tools.harness.kube.access import ISSUER, TokenIssuer
from tools.harness.kube.errors import ApiServerError
from tools.harness.kube.process_group import ProcessGroup
from tools.harness.ports import free_ports

START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 20


class ApiServer:
    """An API server as a context manager: ready on entry, removed without traces on exit.

    Its methods block: call them with ``asyncio.to_thread`` where a loop has other work to do.
    """

    def __init__(self, assets: Path, flags: Sequence[str] = ()) -> None:
        """Set it up; `assets` is the folder of the programs, `flags` are for kube-apiserver."""
        self.admin_token: Final = secrets.token_hex(16)
        self._assets = assets
        self._flags = flags
        self.tokens: Final = TokenIssuer()
        self._port, self._etcd_port, peer_port = free_ports(3)
        self._peer_url = f"http://127.0.0.1:{peer_port}"
        self._etcd_url = f"http://127.0.0.1:{self._etcd_port}"
        self._stack = ExitStack()
        self._server: subprocess.Popen[bytes] | None = None
        self._etcd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start both processes and wait until the API server is ready.

        Raises:
            ApiServerError: One of them ended, or the API server was not ready in time.
        """
        with ExitStack() as stack:
            prefix = "epp-kube-"
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
            self._group = stack.enter_context(ProcessGroup())
            self._write_files()
            self._etcd = self._group.start(self._etcd_command(), self._folder / "etcd.log")
            self.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """``https://ip:port``."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def ca_file(self) -> Path:
        """PEM file with which its certificate is verified."""
        return self._folder / "certificates" / "apiserver.crt"

    def start(self) -> None:
        """Start the API server unless it runs, resume it if it is suspended, and wait until ready.

        Raises:
            ApiServerError: It ended, or was not ready in time.
        """
        if self._server is None or self._server.poll() is not None:
            self._server = self._group.start(self._command(), self._folder / "kube-apiserver.log")
        else:
            self._server.send_signal(signal.SIGCONT)
        self._wait_until_ready()

    def stop(self) -> None:
        """End the API server as a rolling update does, with SIGTERM."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the API server as a crash does: connections are reset."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Freeze it until the next :meth:`start`; its connections stay open."""
        self._running().send_signal(signal.SIGSTOP)

    def compact(self) -> None:
        """Make etcd forget all but the newest revision of each object.

        The API server keeps the last changes in its watch cache until it is restarted.
        """
        with httpx.Client(base_url=self._etcd_url, trust_env=False) as etcd:
            status = etcd.post("/v3/maintenance/status", json={}).raise_for_status().json()
            compaction = {"revision": status["header"]["revision"], "physical": True}
            etcd.post("/v3/kv/compaction", json=compaction).raise_for_status()

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """Return a client for the owner of ``token``, by default the administrator."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {token or self.admin_token}"},
            verify=self.tls(),
            trust_env=False,
            timeout=httpx.Timeout(15.0, pool=None),
        )

    def tls(self) -> ssl.SSLContext:
        """Return a context that trusts the API server."""
        return ssl.create_default_context(cafile=self.ca_file)

    def write_kubeconfig(
        self, path: Path, namespace: str = "default", *, server: str = "", **user: str
    ) -> None:
        """Write a client configuration for a user: ``token="..."`` or ``tokenFile="..."``.

        Args:
            path: The file.
            namespace: Namespace of the context.
            server: URL of a proxy of the API server; by default the server's own.
            user: The user's credentials; without a token, those of the administrator.
        """
        cluster = {"server": server or self.url, "certificate-authority": str(self.ca_file)}
        context = {"cluster": "test", "user": "test", "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user or {"token": self.admin_token}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document))

    def _write_files(self) -> None:
        (self._folder / "sa.key").write_bytes(self.tokens.private_key)
        admin = f'{self.admin_token},admin,admin,"system:masters"\n'
        (self._folder / "tokens.csv").write_text(admin)

    def _etcd_command(self) -> list[str]:
        return [
            str(self._assets / "etcd"),
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=default={self._peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _command(self) -> list[str]:
        key = self._folder / "sa.key"
        return [
            str(self._assets / "kube-apiserver"),
            f"--etcd-servers={self._etcd_url}",
            "--etcd-compaction-interval=30s",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder / 'certificates'}",
            f"--service-account-issuer={ISSUER}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            # Without it, watches hold up SIGTERM for a minute.
            "--shutdown-watch-termination-grace-period=5s",
            "--service-cluster-ip-range=10.0.0.0/24",
            # The plugin would refuse pods until a controller had made the default account.
            "--disable-admission-plugins=ServiceAccount",
            *self._flags,
        ]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            for name, process in (("etcd", self._etcd), ("kube-apiserver", self._server)):
                if process is not None and process.poll() is not None:
                    raise ApiServerError(
                        f"{name} ended with {process.returncode}:\n{self._log_tails()}"
                    )
            if self._is_ready():
                return
            time.sleep(0.05)
        raise ApiServerError(f"not ready after {START_SECONDS:g} s:\n{self._log_tails()}")

    def _is_ready(self) -> bool:
        # Before the port is open, the certificate may not exist either.
        with suppress(httpx.TransportError, FileNotFoundError, ssl.SSLError):
            response = httpx.get(f"{self.url}/readyz", verify=self.tls(), trust_env=False)
            return response.status_code == httpx.codes.OK
        return False

    def _end(self, number: signal.Signals) -> None:
        server = self._running()
        server.send_signal(number)
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            server.kill()
            server.wait()
            raise ApiServerError(
                f"not stopped after {STOP_SECONDS:g} s:\n{self._log_tails()}"
            ) from error

    def _running(self) -> subprocess.Popen[bytes]:
        if self._server is None:
            raise RuntimeError("ApiServer was not entered")
        return self._server

    def _log_tails(self) -> str:
        lines = []
        for log in sorted(self._folder.glob("*.log")):
            tail = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            lines += [f"--- {log.name}", *tail]
        return "\n".join(lines)
