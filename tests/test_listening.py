"""The ext_proc port by its settings, with real clients: changing and client certificates."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from data_layer.certificates import Authority, make_ca, make_leaf
from grpc import aio
from structlog.testing import capture_logs
from transport.contract import METHOD, all_of

from epp.config import default_config
from epp.listening import Listener, make_listener
from epp.settings import ServeSettings, Transport
from epp.transport import Http2Server, TlsError, TlsSettings
from tools.harness.raw_client import Echo

RENEWED = "TLS files were reloaded"
REFUSED = "TLS files were rejected, the last valid ones stay in use"


@pytest.fixture(params=["http2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> Transport:
    made: Transport = request.param
    return made


@dataclass(frozen=True)
class Pki:
    """A directory as --cert-path names it, and who may vouch for what is in it."""

    directory: Path
    scratch: Path
    first: Authority
    second: Authority

    def issue(self, authority: Authority) -> tuple[bytes, bytes]:
        """Return a certificate for this host, and its key."""
        chain, key = make_leaf(authority, self.scratch, address="127.0.0.1")
        return chain.read_bytes(), key.read_bytes()


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    made = Pki(tmp_path / "tls", tmp_path / "scratch", make_ca(), make_ca())
    made.scratch.mkdir()
    write_mounted(made.directory, *made.issue(made.first))
    return made


def write_mounted(directory: Path, chain: bytes, key: bytes) -> None:
    """Write as a kubelet mounts a Secret: links to a link, which is swapped."""
    directory.mkdir(exist_ok=True)
    version = directory / f"..{len(list(directory.iterdir()))}"
    version.mkdir()
    (version / "tls.crt").write_bytes(chain)
    (version / "tls.key").write_bytes(key)
    swapped = directory / "..data_tmp"
    swapped.symlink_to(version.name)
    swapped.replace(directory / "..data")
    for name in ("tls.crt", "tls.key"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(Path("..data", name))


def write_in_place(directory: Path, chain: bytes, key: bytes) -> None:
    (directory / "tls.crt").write_bytes(chain)
    (directory / "tls.key").write_bytes(key)


def write_and_rename(directory: Path, chain: bytes, key: bytes) -> None:
    for name, content in (("tls.crt", chain), ("tls.key", key)):
        partial = directory / f"{name}.new"
        partial.write_bytes(content)
        partial.replace(directory / name)


@dataclass
class Served:
    listener: Listener
    target: str

    async def ask(
        self, authority: Authority, pair: tuple[bytes, bytes] | None = None
    ) -> grpc.StatusCode:
        """Call once on a connection of its own; UNAVAILABLE is a failed handshake."""
        async with self.channel(authority, pair) as channel:
            call = channel.stream_stream(METHOD)(timeout=10)
            try:
                await call.write(b"hello")
                await call.done_writing()
            except (aio.AioRpcError, asyncio.InvalidStateError):
                pass  # its status says so
            return (await all_of(call))[1]

    def channel(self, authority: Authority, pair: tuple[bytes, bytes] | None = None) -> aio.Channel:
        chain, key = pair or (None, None)
        trusted = grpc.ssl_channel_credentials(authority.pem, key, chain)
        alone = [("grpc.use_local_subchannel_pool", 1)]
        return aio.secure_channel(self.target, trusted, options=alone)

    async def until_trusted(self, authority: Authority) -> None:
        async with asyncio.timeout(10):
            while await self.ask(authority) is not grpc.StatusCode.OK:
                pass  # a handshake each


@asynccontextmanager
async def served(
    transport: Transport, tls: TlsSettings | None, **fields: Any
) -> AsyncIterator[Served]:
    settings = ServeSettings(
        config=default_config(),
        host="127.0.0.1",
        grpc_port=0,
        transport=transport,
        tls=tls,
        certificate_poll_seconds=0.02,
        **fields,
    )
    listener = await asyncio.to_thread(make_listener, settings, {METHOD: Echo})
    port = await listener.server.start()
    following = None
    if listener.follower is not None:
        following = asyncio.create_task(listener.follower.run())
    target = f"127.0.0.1:{port}" if port else f"unix:{settings.socket_file}"
    try:
        yield Served(listener, target)
    finally:
        if following is not None:
            following.cancel()
        await listener.server.stop(0)


@pytest.mark.parametrize("write", [write_mounted, write_in_place, write_and_rename])
async def test_a_new_certificate_is_for_new_connections(
    transport: Transport, pki: Pki, write: Callable[[Path, bytes, bytes], None]
) -> None:
    if write is not write_mounted:
        for name in ("tls.crt", "tls.key"):
            content = (pki.directory / name).read_bytes()
            (pki.directory / name).unlink()
            (pki.directory / name).write_bytes(content)
    async with served(transport, TlsSettings(certificate_directory=pki.directory)) as server:
        assert await server.ask(pki.second) is grpc.StatusCode.UNAVAILABLE
        async with server.channel(pki.first) as channel:
            old = channel.stream_stream(METHOD)()
            await old.write(b"before")
            assert await old.read() == b"before"
            write(pki.directory, *pki.issue(pki.second))
            await server.until_trusted(pki.second)
            assert await server.ask(pki.first) is grpc.StatusCode.UNAVAILABLE
            await old.write(b"after")
            assert await old.read() == b"after"


async def test_a_broken_pair_is_reported_once_and_the_last_good_one_stays(
    transport: Transport, pki: Pki
) -> None:
    with capture_logs() as lines:
        async with served(transport, TlsSettings(certificate_directory=pki.directory)) as server:
            (chain, _), (_, key) = pki.issue(pki.first), pki.issue(pki.first)
            write_mounted(pki.directory, chain, key)
            async with asyncio.timeout(10):
                while not [line for line in lines if line["event"] == REFUSED]:
                    await server.ask(pki.first)
            for _ in range(5):
                assert await server.ask(pki.first) is grpc.StatusCode.OK
            write_mounted(pki.directory, *pki.issue(pki.second))
            await server.until_trusted(pki.second)
            assert server.listener.follower is not None
            # The new one is in use before it is counted.
            async with asyncio.timeout(10):
                while server.listener.follower.reloads != {"success": 1, "failure": 1}:
                    await server.ask(pki.second)
    logged = [line for line in lines if line["event"] in {REFUSED, RENEWED}]
    assert [line["event"] for line in logged] == [REFUSED, RENEWED]
    assert logged[0]["log_level"] == "error"
    assert logged[0]["problem"].startswith(f"{pki.directory / 'tls.key'}: the key does not match")


async def test_a_pair_that_is_taken_back_is_reported(pki: Pki) -> None:
    with capture_logs() as lines:
        async with served("http2", TlsSettings(certificate_directory=pki.directory)) as server:
            good = [(pki.directory / name).read_bytes() for name in ("tls.crt", "tls.key")]
            write_mounted(pki.directory, b"", b"")
            again = "TLS files match those in use again"
            for content, event in (((b"", b""), REFUSED), (good, again)):
                write_mounted(pki.directory, *content)
                async with asyncio.timeout(10):
                    while event not in [line["event"] for line in lines]:
                        assert await server.ask(pki.first) is grpc.StatusCode.OK


async def test_files_are_left_alone_if_so_configured(transport: Transport, pki: Pki) -> None:
    tls = TlsSettings(certificate_directory=pki.directory)
    async with served(transport, tls, reload_certificates=False) as server:
        assert server.listener.follower is None
        assert await server.ask(pki.first) is grpc.StatusCode.OK


async def test_a_self_signed_certificate_is_nothing_to_follow(transport: Transport) -> None:
    async with served(transport, TlsSettings()) as server:
        assert server.listener.follower is None


# --- certificates of clients ----------------------------------------------------------------------


def mutual(pki: Pki, authority: Authority) -> TlsSettings:
    path = pki.scratch / "ca.crt"
    path.write_bytes("# Autorité\n".encode() + authority.pem)
    return TlsSettings(certificate_directory=pki.directory, client_authorities=path)


async def test_only_clients_of_the_authorities_are_let_in(transport: Transport, pki: Pki) -> None:
    theirs, others = pki.issue(pki.second), pki.issue(make_ca())
    with capture_logs() as lines:
        async with served(transport, mutual(pki, pki.second)) as server:
            assert await server.ask(pki.first, theirs) is grpc.StatusCode.OK
            assert await server.ask(pki.first) is grpc.StatusCode.UNAVAILABLE
            assert await server.ask(pki.first, others) is grpc.StatusCode.UNAVAILABLE
            assert await server.ask(pki.first, theirs) is grpc.StatusCode.OK
            assert await server.ask(pki.first) is grpc.StatusCode.UNAVAILABLE
            http2 = server.listener.server
            if isinstance(http2, Http2Server):
                # A client may try once more before it gives up.
                assert http2.statistics().refused["handshake"] >= 3
    failed = [line["reason"] for line in lines if line["event"] == "TLS handshake failed"]
    if transport == "http2":
        assert len(failed) == len(set(failed)) == 2
        assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in failed
        assert any(reason.startswith("CERTIFICATE_VERIFY_FAILED: ") for reason in failed)


async def test_other_authorities_are_taken_up_while_running(transport: Transport, pki: Pki) -> None:
    former, following = pki.issue(pki.second), pki.issue(pki.first)
    async with served(transport, mutual(pki, pki.second)) as server:
        assert await server.ask(pki.first, former) is grpc.StatusCode.OK
        assert await server.ask(pki.first, following) is grpc.StatusCode.UNAVAILABLE
        mutual(pki, pki.first)
        async with asyncio.timeout(10):
            while await server.ask(pki.first, following) is not grpc.StatusCode.OK:
                pass  # a handshake each
        assert await server.ask(pki.first, former) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "the file is missing; name a file with the certificates of authorities, in PEM"),
        (b"nothing", "contains no readable PEM certificate"),
        (b"", "contains no readable PEM certificate"),
    ],
)
def test_authorities_that_cannot_be_read_are_named(
    tmp_path: Path, content: bytes | None, text: str
) -> None:
    path = tmp_path / "ca.crt"
    if content is not None:
        path.write_bytes(content)
    settings = ServeSettings(config=default_config(), tls=TlsSettings(client_authorities=path))
    with pytest.raises(TlsError, match=f"^{path}: {text}"):
        make_listener(settings, {})


# --- a socket file --------------------------------------------------------------------------------


async def test_a_socket_file_is_served_and_gone_at_the_end(
    transport: Transport, tmp_path: Path
) -> None:
    path = tmp_path / "epp.sock"
    async with served(transport, None, socket_file=path) as server:
        assert path.stat().st_mode & 0o777 == 0o660
        async with aio.insecure_channel(server.target) as channel:
            call = channel.stream_stream(METHOD)(timeout=10)
            await call.write(b"hello")
            await call.done_writing()
            assert await all_of(call) == ([b"hello"], grpc.StatusCode.OK)
    assert not await asyncio.to_thread(path.exists)


async def test_a_socket_file_may_have_tls(transport: Transport, tmp_path: Path, pki: Pki) -> None:
    tls = TlsSettings(certificate_directory=pki.directory)
    async with served(transport, tls, socket_file=tmp_path / "epp.sock") as server:
        trusted = grpc.ssl_channel_credentials(pki.first.pem)
        name = (("grpc.ssl_target_name_override", "127.0.0.1"),)
        async with aio.secure_channel(server.target, trusted, options=name) as channel:
            call = channel.stream_stream(METHOD)(timeout=10)
            await call.write(b"hello")
            await call.done_writing()
            assert await all_of(call) == ([b"hello"], grpc.StatusCode.OK)
