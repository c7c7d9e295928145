"""Calls of the API client, and the error for each kind of failure."""

import asyncio
import base64
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from data_layer.certificates import make_ca, make_leaf

from epp.kubernetes.api import (
    ApiClient,
    ApiError,
    ConnectionFailedError,
    ObjectMeta,
    Resource,
    ServedResource,
    UnreachableError,
    load_connection,
)

from .conftest import Clock, connect, tls_config, write_kubeconfig
from .fake_api import CONFIG_MAPS, GADGETS, LEASES, NODES, FakeApi, fake_api
from .fake_state import RefusedError


class Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str = ""


class Lease(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec


class Status(msgspec.Struct):
    phase: str


class Gadget(msgspec.Struct):
    metadata: ObjectMeta
    status: Status | None = None
    spec: dict[str, Any] | None = None


def make_lease(holder: str, version: str = "") -> Lease:
    return Lease(ObjectMeta(name="l", resource_version=version), Spec(holder))


async def test_an_object_is_created_read_replaced_and_deleted(
    api: FakeApi, client: ApiClient
) -> None:
    made = await client.post(LEASES, make_lease("a"), Lease, namespace="d")
    assert made.metadata.uid
    body = msgspec.json.decode(api.requests[-1].body)
    assert (body["apiVersion"], body["kind"]) == ("coordination.k8s.io/v1", "Lease")
    assert body["spec"] == {"holderIdentity": "a"}
    read = await client.get(LEASES, Lease, namespace="d", name="l")
    assert read == made
    made.spec.holder_identity = "b"
    replaced = await client.put(LEASES, made, Lease, namespace="d", name="l")
    assert replaced.spec.holder_identity == "b"
    assert int(replaced.metadata.resource_version) > int(made.metadata.resource_version)
    await client.delete(LEASES, namespace="d", name="l")
    with pytest.raises(ApiError) as refused:
        await client.get(LEASES, Lease, namespace="d", name="l")
    assert (refused.value.status, refused.value.reason) == (404, "NotFound")
    assert str(refused.value) == (
        'cannot get leases l in namespace d: 404 NotFound: leases "l" not found'
    )


async def test_an_object_that_another_has_changed_is_not_replaced(
    api: FakeApi, client: ApiClient
) -> None:
    mine = await client.post(LEASES, make_lease("a"), Lease, namespace="d")
    api.update(LEASES, "l", spec={"holderIdentity": "b"})
    mine.spec.holder_identity = "c"
    with pytest.raises(ApiError) as refused:
        await client.put(LEASES, mine, Lease, namespace="d", name="l")
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    now = await client.get(LEASES, Lease, namespace="d", name="l")
    assert now.spec.holder_identity == "b"
    with pytest.raises(ApiError, match="already exists"):
        await client.post(LEASES, make_lease("c"), Lease, namespace="d")


async def test_a_patch_changes_the_status_and_nothing_else(api: FakeApi, client: ApiClient) -> None:
    api.create(GADGETS, "g", spec={"size": 1})
    patched = await client.patch(
        GADGETS,
        {"status": {"phase": "Ready"}, "spec": {"size": 2}},
        Gadget,
        namespace="d",
        name="g",
        subresource="status",
    )
    assert patched.status == Status("Ready")
    assert patched.spec == {"size": 1}
    assert api.requests[-1].path.endswith("/namespaces/d/gadgets/g/status")
    assert api.requests[-1].headers["content-type"] == "application/merge-patch+json"
    patched = await client.patch(GADGETS, {"spec": {"size": None}}, Gadget, namespace="d", name="g")
    assert patched.spec == {}
    assert patched.status == Status("Ready")
    replaced = await client.put(
        GADGETS,
        Gadget(patched.metadata, Status("Old")),
        Gadget,
        namespace="d",
        name="g",
        subresource="status",
    )
    assert replaced.status == Status("Old")
    assert replaced.spec == {}


async def test_who_calls_is_named(api: FakeApi, client: ApiClient) -> None:
    api.create(CONFIG_MAPS, "a")
    await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
    assert api.requests[-1].headers["user-agent"].startswith("epp/")
    assert "authorization" not in api.requests[-1].headers


@pytest.mark.parametrize(
    ("namespace", "rule"),
    [
        ("d", 'a Role in d: apiGroups: ["example.com"], resources: ["gadgets/status"]'),
        (None, 'a ClusterRole: apiGroups: ["example.com"], resources: ["gadgets/status"]'),
    ],
)
async def test_a_refused_right_is_named_as_a_rule(
    namespace: str | None, rule: str, api: FakeApi, client: ApiClient
) -> None:
    api.faults.denied.add(("patch", "gadgets/status"))
    with pytest.raises(ApiError) as refused:
        await client.patch(GADGETS, {}, Gadget, namespace=namespace, name="g", subresource="status")
    error = refused.value
    assert (error.status, error.reason, error.verb) == (403, "Forbidden", "patch")
    assert (error.resource, error.namespace) == (GADGETS, namespace)
    assert 'User "system:serviceaccount:d:epp" cannot patch' in error.message
    assert str(error).endswith(f'; allow it by a rule of {rule}, verbs: ["patch"]')


async def test_a_busy_server_says_how_long_to_wait(api: FakeApi, client: ApiClient) -> None:
    api.faults.refusals += [
        RefusedError(429, "TooManyRequests", "slow down", retry_after=7),
        RefusedError(429, "TooManyRequests", "slow down"),
    ]
    waits = []
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
        waits.append(refused.value.retry_after_seconds)
    assert waits == [7.0, None]


async def test_a_page_of_a_proxy_is_quoted(api: FakeApi, client: ApiClient) -> None:
    api.faults.raw = b"HTTP/1.1 502 Bad\r\ncontent-length: 22\r\n\r\n<h1>Bad\nGateway</h1>\n "
    with pytest.raises(ApiError) as refused:
        await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
    assert str(refused.value) == (
        "cannot get configmaps a in namespace d: 502 <h1>Bad Gateway</h1>"
    )


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "unexpected response .* `object`"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n<>", "unexpected response .* malformed"),
        (b"SSH-2.0\r\n\r\n", "connection to http://.* lost"),
    ],
    ids=["other JSON", "no JSON", "no HTTP"],
)
async def test_an_unintelligible_response_is_a_failed_connection(
    raw: bytes, text: str, api: FakeApi, client: ApiClient
) -> None:
    api.faults.raw = raw
    with pytest.raises(ConnectionFailedError, match=text) as failed:
        await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
    assert not isinstance(failed.value, UnreachableError)


async def test_a_server_that_does_not_answer_fails_in_time(api: FakeApi, client: ApiClient) -> None:
    api.faults.is_hung = True
    async with ApiClient(client.connection, timeout_seconds=0.05) as impatient:
        with pytest.raises(ConnectionFailedError, match=r"sent nothing for 0\.05 s"):
            await impatient.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


async def test_a_handshake_that_is_not_answered_ends_with_its_socket(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connection = await asyncio.to_thread(connect, tmp_path, url)
        async with ApiClient(connection, timeout_seconds=0.1) as client:
            text = f"cannot connect to {url}: no response for 0.05 s"
            with pytest.raises(UnreachableError, match=text):
                await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
            await ended.wait()


async def test_a_call_given_up_does_not_leave_its_response_to_the_next(
    api: FakeApi, client: ApiClient
) -> None:
    api.create(CONFIG_MAPS, "a")
    api.faults.is_hung = True
    given_up = asyncio.create_task(
        client.get(CONFIG_MAPS, Gadget, namespace="d", name="b"),
    )
    await api.until(lambda: len(api.requests) == 1)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    api.faults.is_hung = False
    found = await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
    assert found.metadata.name == "a"


@pytest.mark.parametrize("server", ["http://127.0.0.1:{port}", "http://epp.invalid:{port}"])
async def test_a_server_that_is_not_there_is_unreachable(server: str, tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening
        url = server.format(port=held.getsockname()[1])
        connection = await asyncio.to_thread(connect, tmp_path, url)
        async with ApiClient(connection) as client:
            with pytest.raises(UnreachableError, match=f"cannot connect to {url}: .+"):
                await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


async def test_discovery_finds_the_kinds_of_a_group(api: FakeApi, client: ApiClient) -> None:
    other = Resource("example.com", "v1alpha1", "others", "Other")
    found = await client.find(replace(GADGETS, plural=""))
    assert found == ServedResource(GADGETS, is_namespaced=True)
    assert api.requests[-1].path == "/apis/example.com/v1alpha1"
    assert await client.find(CONFIG_MAPS) == ServedResource(CONFIG_MAPS, is_namespaced=True)
    assert api.requests[-1].path == "/api/v1"
    assert await client.find(NODES) == ServedResource(NODES, is_namespaced=False)
    assert await client.find(other) is None
    api.withdraw(GADGETS)
    assert await client.find(GADGETS) is None
    api.faults.refusals.append(RefusedError(403, "Forbidden", "no"))
    with pytest.raises(
        ApiError, match=r"cannot get /apis/example\.com/v1alpha1: 403 Forbidden: no$"
    ):
        await client.find(GADGETS)


async def test_names_are_quoted_in_paths(api: FakeApi, client: ApiClient) -> None:
    with pytest.raises(ApiError, match="404"):
        await client.get(CONFIG_MAPS, Gadget, namespace="d/../e", name="a?b")
    assert api.requests[-1].path == "/api/v1/namespaces/d%2F..%2Fe/configmaps/a%3Fb"


async def test_the_kernel_watches_the_connection(client: ApiClient, api: FakeApi) -> None:
    """So a half-open connection is noticed within 25 s; a watch may be silent for a minute."""
    async with client._http._newest.http.stream("GET", "/api/v1") as response:
        carrier = response.extensions["network_stream"].get_extra_info("socket")
        assert carrier.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = {
            name: carrier.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_USER_TIMEOUT")
        }
    assert options == {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_USER_TIMEOUT": 20_000}


# Credentials


def _sent(api: FakeApi) -> list[str]:
    return [each.headers.get("authorization", "") for each in api.requests]


async def test_a_token_file_is_read_again_after_a_minute_and_after_a_refusal(
    api: FakeApi, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    path = write_kubeconfig(tmp_path / "config", api.url, "{tokenFile: token}")
    clock = Clock()
    connection = await asyncio.to_thread(load_connection, {"KUBECONFIG": str(path)}, clock=clock)
    api.create(CONFIG_MAPS, "a")
    async with ApiClient(connection) as client:

        async def get() -> None:
            await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")

        await get()
        await asyncio.to_thread(token.write_text, "two")
        clock.now = 59.0
        await get()
        clock.now = 60.0
        await get()
        assert _sent(api) == ["Bearer one", "Bearer one", "Bearer two"]
        api.requests.clear()
        await asyncio.to_thread(token.write_text, "three")
        api.faults.tokens = {"three"}
        await get()
        assert _sent(api) == ["Bearer two", "Bearer three"]
        # A token that has not changed is not tried again.
        api.requests.clear()
        api.faults.tokens = {"four"}
        with pytest.raises(ApiError, match="401 Unauthorized"):
            await get()
        assert _sent(api) == ["Bearer three"]
        # While the file is missing the last token is used.
        api.faults.tokens = {"three"}
        await asyncio.to_thread(token.unlink)
        clock.now = 500.0
        await get()
        assert _sent(api)[-1] == "Bearer three"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_plugin_supplies_the_token(version: str, api: FakeApi, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        'case "$KUBERNETES_EXEC_INFO" in *ExecCredential*) ;; *) exit 1;; esac\n'
        """echo '{"status": {"token": "'"$1"'"}}'\n"""
    )
    plugin.chmod(0o755)
    user = (
        f"{{exec: {{apiVersion: client.authentication.k8s.io/{version}, command: ./plugin, "
        "args: [secret]}}"
    )
    api.faults.tokens = {"secret"}
    api.create(CONFIG_MAPS, "a")
    connection = await asyncio.to_thread(connect, tmp_path, api.url, user)
    async with ApiClient(connection) as client:
        assert await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("echo oops >&2; exit 3", "returned 3: oops"),
        ("echo oops", "no credentials for"),
        ("echo '{}'", "no credentials for"),
    ],
)
async def test_a_plugin_that_fails_leaves_the_server_unreachable(
    script: str, text: str, api: FakeApi, tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    user = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin}}"
    connection = await asyncio.to_thread(connect, tmp_path, api.url, user)
    async with ApiClient(connection) as client:
        with pytest.raises(UnreachableError, match=text):
            await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


# TLS


@pytest.fixture
async def tls_api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    """A server that wants a client's certificate; ``ca.crt`` is the authority of both."""

    def make_context() -> ssl.SSLContext:
        authority = make_ca()
        (tmp_path / "ca.crt").write_bytes(authority.pem)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*make_leaf(authority, tmp_path, address="127.0.0.1"))
        context.load_verify_locations(tmp_path / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    async with fake_api(tls=await asyncio.to_thread(make_context)) as api:
        api.create(CONFIG_MAPS, "a")
        yield api


@pytest.mark.parametrize(
    "cluster",
    [
        "certificate-authority: ca.crt",
        "certificate-authority: ca.crt, tls-server-name: 127.0.0.1",
        "insecure-skip-tls-verify: true",
    ],
)
async def test_tls_is_as_configured(cluster: str, tls_api: FakeApi, tmp_path: Path) -> None:
    environ = tls_config(tmp_path, f"server: '{tls_api.url}', {cluster}")
    connection = await asyncio.to_thread(load_connection, environ)
    async with ApiClient(connection) as client:
        assert await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


async def test_certificates_may_be_in_the_kubeconfig_itself(
    tls_api: FakeApi, tmp_path: Path
) -> None:
    authority, certificate, key = (
        base64.b64encode((tmp_path / name).read_bytes()).decode()
        for name in ("ca.crt", "leaf.crt", "leaf.key")
    )
    environ = tls_config(
        tmp_path,
        f"server: '{tls_api.url}', certificate-authority-data: {authority}, "
        "certificate-authority: missing.crt",
        f"{{client-certificate-data: {certificate}, client-key-data: {key}}}",
    )
    connection = await asyncio.to_thread(load_connection, environ)
    async with ApiClient(connection) as client:
        assert await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


async def test_a_client_without_a_certificate_is_turned_away(
    tls_api: FakeApi, tmp_path: Path
) -> None:
    environ = tls_config(tmp_path, f"server: '{tls_api.url}', certificate-authority: ca.crt", "{}")
    connection = await asyncio.to_thread(load_connection, environ)
    async with ApiClient(connection) as client:
        with pytest.raises(ConnectionFailedError):
            await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")


@pytest.mark.parametrize(
    "cluster", ["", "certificate-authority: ca.crt, tls-server-name: kubernetes"]
)
async def test_a_server_that_cannot_prove_its_name_is_not_trusted(
    cluster: str, tls_api: FakeApi, tmp_path: Path
) -> None:
    environ = tls_config(tmp_path, f"server: '{tls_api.url}', {cluster}")
    connection = await asyncio.to_thread(load_connection, environ)
    async with ApiClient(connection) as client:
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            await client.get(CONFIG_MAPS, Gadget, namespace="d", name="a")
