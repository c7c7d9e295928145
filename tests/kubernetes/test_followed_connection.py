"""Certificates and kubeconfigs that change while a client runs."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from data_layer.certificates import make_ca, make_leaf
from log_watch import Logs

from epp.kubernetes.api import (
    ApiClient,
    ApiError,
    Connection,
    ObjectMeta,
    UnreachableError,
    load_connection,
)
from epp.kubernetes.api.followed_connection import LOOK_SECONDS, SETTLE_SECONDS
from epp.kubernetes.api.kubeconfig import Selected, read_kubeconfig

from .conftest import Clock, tls_config, write_kubeconfig
from .fake_api import CONFIG_MAPS, FakeApi, fake_api

NOWHERE = "server: 'https://127.0.0.1:1', certificate-authority: ca.crt"


class Settings(msgspec.Struct):
    """A ConfigMap."""

    metadata: ObjectMeta


class Rotation:
    """A server whose authority, and with it every certificate, is replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.rotate()

    def rotate(self) -> None:
        """Replace all files; new connections of the server use them."""
        authority = make_ca()
        (self._folder / "ca.crt").write_bytes(authority.pem)
        self.context.load_cert_chain(*make_leaf(authority, self._folder, address="127.0.0.1"))


def _events(logs: Logs) -> list[str]:
    return [entry["event"] for entry in logs.entries]


async def test_new_files_of_certificates_are_used(tmp_path: Path, logs: Logs) -> None:
    rotation = await asyncio.to_thread(Rotation, tmp_path)
    clock = Clock()
    async with fake_api(tls=rotation.context) as api:
        api.create(CONFIG_MAPS, "a")
        environ = tls_config(tmp_path, f"server: '{api.url}', certificate-authority: ca.crt")
        connection = await asyncio.to_thread(load_connection, environ, clock=clock)
        async with ApiClient(connection) as client:

            async def get() -> None:
                assert await client.get(CONFIG_MAPS, Settings, namespace="d", name="a")

            former = client._http._newest.http
            async with client.watch(CONFIG_MAPS, namespace="d", params={}, idle_seconds=9) as batch:
                await anext(batch)
                await asyncio.to_thread(rotation.rotate)
                settled = LOOK_SECONDS + SETTLE_SECONDS
                # The watch occupies the one connection, and a new one finds the new authority.
                for clock.now in (LOOK_SECONDS - 0.1, LOOK_SECONDS, settled - 0.1):
                    with pytest.raises(UnreachableError, match="certificate verify failed"):
                        await get()
                assert "new credentials for the Kubernetes API" not in _events(logs)
                clock.now = settled
                await get()
                assert "new credentials for the Kubernetes API" in _events(logs)
                assert not former.is_closed  # the watch goes on
                api.create(CONFIG_MAPS, "b")
                assert b'"b"' in (await anext(batch))[0]
            assert former.is_closed
            await get()


class Rotated:
    """A client whose files a test changes, and a clock."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self.client = client
        self._clock = clock

    @property
    def connection(self) -> Connection:
        return self.client.connection

    async def look(self, seconds: float = LOOK_SECONDS) -> None:
        """Make a call some time later."""
        self._clock.now += seconds
        with suppress(UnreachableError):
            await self.client.get(CONFIG_MAPS, Settings, namespace="d", name="a")

    async def settle(self) -> None:
        """Look twice: a change counts then."""
        await self.look()
        await self.look(SETTLE_SECONDS)


@asynccontextmanager
async def rotated(environ: dict[str, str]) -> AsyncIterator[Rotated]:
    clock = Clock()
    connection = await asyncio.to_thread(load_connection, environ, clock=clock)
    async with ApiClient(connection) as client:
        yield Rotated(client, clock)


async def test_a_bundle_that_is_being_written_is_not_used(tmp_path: Path, logs: Logs) -> None:
    bundle = tmp_path / "ca.crt"
    first, second = make_ca().pem, make_ca().pem
    await asyncio.to_thread(bundle.write_bytes, first)
    environ = tls_config(tmp_path, NOWHERE, "{}")
    async with rotated(environ) as client:
        before = client.connection
        for content in (first[:-40], first, first + second[:80], first + second):
            await asyncio.to_thread(bundle.write_bytes, content)
            await client.look()
            assert client.connection is before
        assert logs.entries == []
        await client.look(SETTLE_SECONDS)
        assert len(client.connection.tls.get_ca_certs()) == 2


async def test_a_kubeconfig_that_is_being_written_holds_new_certificates_back(
    tmp_path: Path, logs: Logs
) -> None:
    bundle, file = tmp_path / "ca.crt", tmp_path / "config"
    await asyncio.to_thread(bundle.write_bytes, make_ca().pem)
    async with rotated(tls_config(tmp_path, NOWHERE, "{}")) as client:
        before = client.connection
        text = await asyncio.to_thread(file.read_text)
        await asyncio.to_thread(bundle.write_bytes, make_ca().pem)
        await client.look()
        await asyncio.to_thread(file.write_text, text[:20])
        await client.look()
        assert client.connection is before
        await asyncio.to_thread(file.write_text, text)
        await client.look()
        assert client.connection is not before
        assert [each["event"] for each in logs.entries] == [
            "new credentials for the Kubernetes API"
        ]


async def test_a_change_that_is_undone_before_it_has_settled_is_none(
    tmp_path: Path, logs: Logs
) -> None:
    bundle = tmp_path / "ca.crt"
    pem = make_ca().pem
    await asyncio.to_thread(bundle.write_bytes, pem)
    environ = tls_config(tmp_path, NOWHERE, "{}")
    async with rotated(environ) as client:
        before = client.connection
        await asyncio.to_thread(bundle.write_bytes, pem[:50])
        await client.look()
        await asyncio.to_thread(bundle.write_bytes, pem)
        for _ in range(3):
            await client.settle()
        assert client.connection is before
        assert logs.entries == []


async def test_a_change_while_a_kubeconfig_is_read_is_new_though_it_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kubeconfig"
    await asyncio.to_thread(write_kubeconfig, file, "http://first:1")
    is_first = True

    def changed_and_read(paths: Sequence[Path], context_name: str = "") -> Selected:
        nonlocal is_first
        if is_first:
            is_first = False
            write_kubeconfig(file, "http://second:1")  # after the look that found the first
        return read_kubeconfig(paths, context_name)

    monkeypatch.setattr("epp.kubernetes.api.connection.read_kubeconfig", changed_and_read)
    async with rotated({"KUBECONFIG": str(file)}) as client:
        assert client.connection.server == "http://second:1"
        await asyncio.to_thread(write_kubeconfig, file, "http://first:1")
        await client.settle()
        assert client.connection.server == "http://first:1"


async def test_a_kubeconfig_is_read_again(api: FakeApi, tmp_path: Path, logs: Logs) -> None:
    api.create(CONFIG_MAPS, "a")
    api.faults.tokens = {"second"}
    file = tmp_path / "kubeconfig"
    await asyncio.to_thread(write_kubeconfig, file, api.url, "{token: first}")
    async with rotated({"KUBECONFIG": str(file)}) as client:
        with pytest.raises(ApiError, match="401"):
            await client.look(0)
        await asyncio.to_thread(file.write_text, "clusters: [")
        for _ in range(2):
            with pytest.raises(ApiError, match="401"):
                await client.look()
        assert "is no valid kubeconfig" in logs.entries[-1]["problem"]
        await asyncio.to_thread(write_kubeconfig, file, api.url, "{token: second}")
        with pytest.raises(ApiError, match="401"):
            await client.look()
        await client.look(SETTLE_SECONDS)
        assert api.requests[-1].headers["authorization"] == "Bearer second"


async def test_another_current_context_is_not_followed(api: FakeApi, tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    await asyncio.to_thread(write_kubeconfig, file, api.url)
    api.create(CONFIG_MAPS, "a")
    async with rotated({"KUBECONFIG": str(file)}) as client:
        text = await asyncio.to_thread(file.read_text)
        other = "- {name: other, context: {cluster: k, user: u, namespace: other}}"
        text = text.replace("current-context: c", "current-context: other")
        text = text.replace("contexts: [", "contexts:\n- ").replace(
            "namespace: d}}]", "namespace: d2}}"
        )
        await asyncio.to_thread(file.write_text, f"{text}{other}\n")
        await client.settle()
        assert client.connection.namespace == "d2"


async def test_unusable_files_of_certificates_change_nothing(tmp_path: Path, logs: Logs) -> None:
    rotation = await asyncio.to_thread(Rotation, tmp_path)
    clock = Clock()
    key = tmp_path / "leaf.key"
    async with fake_api(tls=rotation.context) as api:
        api.create(CONFIG_MAPS, "a")
        environ = tls_config(tmp_path, f"server: '{api.url}', certificate-authority: ca.crt")
        connection = await asyncio.to_thread(load_connection, environ, clock=clock)
        async with ApiClient(connection) as client:
            good = await asyncio.to_thread(key.read_bytes)
            for broken in (b"half a key", b"half a key", None):
                if broken is None:
                    await asyncio.to_thread(key.unlink)
                else:
                    await asyncio.to_thread(key.write_bytes, broken)
                for wait in (LOOK_SECONDS, SETTLE_SECONDS):
                    clock.now += wait
                    assert await client.get(CONFIG_MAPS, Settings, namespace="d", name="a")
                assert client.connection is connection
            warning = "new credentials for the Kubernetes API are unusable, the last ones stay"
            assert _events(logs) == [warning, warning]  # one for each kind of fault
            assert str(tmp_path) in logs.entries[0]["source"]
            await asyncio.to_thread(key.write_bytes, good)
            for wait in (LOOK_SECONDS, SETTLE_SECONDS):
                clock.now += wait
                assert await client.get(CONFIG_MAPS, Settings, namespace="d", name="a")
            assert client.connection is not connection
            assert _events(logs)[2:] == ["new credentials for the Kubernetes API"]
