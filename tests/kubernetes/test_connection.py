"""The source of the client's configuration, and the error if there is none."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from data_layer.certificates import make_ca

from epp.kubernetes.api import ConfigurationError, load_connection

from .conftest import connect, write_kubeconfig

IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """A service account, as the kubelet mounts it."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("secret\n")
    (folder / "namespace").write_text("models\n")
    (folder / "ca.crt").write_bytes(make_ca().pem)
    return folder


async def _token(auth: httpx2.Auth | None) -> str:
    assert auth is not None
    flow = auth.async_auth_flow(httpx2.Request("GET", "http://x"))
    request = await anext(flow)
    await flow.aclose()
    return request.headers["authorization"]


def test_a_pod_uses_its_service_account(tmp_path: Path, account: Path) -> None:
    write_kubeconfig(tmp_path / "config", "http://unused")
    found = load_connection(IN_CLUSTER, home=tmp_path, service_account=account)
    assert found.server == "https://10.0.0.1:443"
    assert found.namespace == "models"
    assert found.tls.get_ca_certs()
    assert asyncio.run(_token(found.auth)) == "Bearer secret"
    assert str(account) in found.source


def test_an_ipv6_address_of_the_service_is_put_in_brackets(account: Path) -> None:
    environ = IN_CLUSTER | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert load_connection(environ, service_account=account).server == "https://[fd00::1]:443"


def test_a_service_account_needs_no_namespace(account: Path) -> None:
    (account / "namespace").unlink()
    assert load_connection(IN_CLUSTER, service_account=account).namespace is None


def test_kubeconfig_is_preferred_to_the_service_account(tmp_path: Path, account: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "http://chosen")
    environ = IN_CLUSTER | {"KUBECONFIG": str(path)}
    found = load_connection(environ, service_account=account)
    assert (found.server, found.namespace) == ("http://chosen", "d")
    assert found.source == f"{path}, context c"


def test_the_file_in_the_home_directory_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", "http://home")
    for environ in ({}, IN_CLUSTER, {"KUBECONFIG": ""}):
        found = load_connection(environ, home=tmp_path, service_account=tmp_path / "none")
        assert found.server == "http://home"


def test_without_any_configuration_all_places_are_named(tmp_path: Path) -> None:
    account = tmp_path / "none"
    with pytest.raises(ConfigurationError) as refused:
        load_connection({}, home=tmp_path, service_account=account)
    assert str(refused.value) == (
        "no configuration of a Kubernetes client found: KUBECONFIG is not set, "
        f"KUBERNETES_SERVICE_HOST is not set, {tmp_path}/.kube/config does not exist; "
        "set KUBECONFIG to a kubeconfig file, or run in a pod with a service account token mounted"
    )
    with pytest.raises(ConfigurationError, match=f"{account}/token does not exist, "):
        load_connection(IN_CLUSTER, home=tmp_path, service_account=account)
    with pytest.raises(
        ConfigurationError, match=f"no file that exists: {tmp_path}/a, {tmp_path}/b"
    ):
        load_connection({"KUBECONFIG": f"{tmp_path}/a{os.pathsep}{tmp_path}/b"}, home=tmp_path)


def test_several_files_are_merged_and_the_first_to_name_something_wins(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "sub" / "two"
    two.parent.mkdir()
    (tmp_path / "empty").write_text("")
    one.write_text(
        "current-context: ''\n"
        "clusters: [{name: k, cluster: {server: 'http://first'}}]\n"
        "users: null\n"
        "contexts: null\n"
    )
    write_kubeconfig(two, "http://second", "{tokenFile: token}")
    (two.parent / "token").write_text("beside two")
    files = (tmp_path / "missing", tmp_path / "empty", one, two)
    found = load_connection({"KUBECONFIG": os.pathsep.join(map(str, files))})
    assert found.server == "http://first"
    assert found.namespace == "d"
    assert asyncio.run(_token(found.auth)) == "Bearer beside two"


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("{token: fixed}", "Bearer fixed"),
        ("{username: u, password: p}", "Basic dTpw"),
    ],
)
def test_a_user_is_authenticated(user: str, expected: str, tmp_path: Path) -> None:
    assert asyncio.run(_token(connect(tmp_path, "http://x", user).auth)) == expected


def test_a_proxy_is_used_if_the_cluster_names_one(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "current-context: c\n"
        "clusters: [{name: k, cluster: {server: 'http://x', proxy-url: 'http://proxy:3128'}}]\n"
        "contexts: [{name: c, context: {cluster: k}}]\n"
    )
    found = load_connection({"KUBECONFIG": str(path), "HTTPS_PROXY": "http://other"})
    assert found.proxy == "http://proxy:3128"
    assert found.namespace is None
    assert found.auth is None


GOOD = {
    "current-context": "current-context: c",
    "clusters": "clusters: [{name: k, cluster: {server: 'https://x'}}]",
    "users": "users: [{name: u, user: {}}]",
    "contexts": "contexts: [{name: c, context: {cluster: k, user: u}}]",
}


@pytest.mark.parametrize(
    ("field", "line", "text"),
    [
        ("current-context", "", "no current-context: kubectl config use-context NAME"),
        ("current-context", "current-context: x", r"no context 'x' \(there are: c\)"),
        ("clusters", "", r"no cluster 'k' \(there are: none\)"),
        ("users", "users: []", r"no user 'u' \(there are: none\)"),
        ("clusters", "clusters: {}", r"no valid kubeconfig: .*\$\.clusters"),
        ("clusters", "clusters: [", r"no valid kubeconfig: [^\n<]*line \d+, column \d+\Z"),
        (
            "clusters",
            "clusters: [{name: k, cluster: {server: 10.0.0.1}}]",
            "10.0.0.1 is no http or https URL",
        ),
        (
            "clusters",
            "clusters: [{name: k, cluster: {server: 'https://x', certificate-authority: no.crt}}]",
            "No such file or directory: .*/no.crt",
        ),
        (
            "clusters",
            "clusters: [{name: k, cluster: {server: 'https://x', certificate-authority: config}}]",
            "is unusable: ",
        ),
        (
            "users",
            "users: [{name: u, user: {tokenFile: gone}}]",
            "No such file or directory: .*/gone'",
        ),
        (
            "users",
            "users: [{name: u, user: {client-certificate: config}}]",
            "a client certificate and its key go together",
        ),
        (
            "users",
            "users: [{name: u, user: {auth-provider: {name: gcp}}}]",
            "auth-provider not supported",
        ),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(
    field: str, line: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text("\n".join((GOOD | {field: line}).values()))
    with pytest.raises(ConfigurationError, match=text) as refused:
        load_connection({"KUBECONFIG": str(path)})
    assert str(refused.value).startswith(str(path))


def test_a_directory_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: is a directory"):
        load_connection({"KUBECONFIG": str(tmp_path)})


@pytest.mark.parametrize("missing", ["lightkube", "httpx2"])
def test_without_the_extra_epp_works_and_kubernetes_says_what_to_install(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import epp.app, epp.cli, epp.kubernetes\n"
        "try: import epp.kubernetes.api\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"Kubernetes needs the Python package {missing}, which is not installed: "
        "pip install 'endpoint-picker[kubernetes]'\n"
    )


THREADS = """
import sys
from pathlib import Path
from threading import Barrier, Thread

from epp.kubernetes.api.kubeconfig import read_kubeconfig

sys.setswitchinterval(1e-6)
barrier = Barrier(8)

def read():
    barrier.wait()
    read_kubeconfig([Path(sys.argv[1])])

threads = [Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_several_threads_may_read_the_first_kubeconfig_of_a_process(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", "http://chosen")
    # Without preparation, four of ten processes ended with SIGSEGV.
    processes = [subprocess.Popen([sys.executable, "-c", THREADS, path]) for _ in range(8)]
    assert [process.wait() for process in processes] == [0] * 8
