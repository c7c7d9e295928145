"""HTTPS on the metrics port: admitted clients, and changing certificates."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from data_layer.certificates import Authority
from test_app import make_settings, running
from test_listening import Pki, pki, write_mounted

from epp.app import App
from epp.cli.debug_pages import DebugClient, DebugPageError
from epp.transport import TlsError, TlsSettings

__all__ = ["pki"]  # a fixture


def client(authority: Authority, pair: tuple[Path, Path] | None = None) -> httpx.AsyncClient:
    """Return a client that trusts ``authority``; ``pair`` is its own certificate and key."""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    if pair is not None:
        context.load_cert_chain(*pair)
    return httpx.AsyncClient(trust_env=False, verify=context)


async def status(port: int, authority: Authority, pair: tuple[Path, Path] | None = None) -> int:
    """Return the status of the page's response; 0 if there was none."""
    made = await asyncio.to_thread(client, authority, pair)
    async with made:
        try:
            response = await made.get(f"https://127.0.0.1:{port}/metrics")
        except httpx.TransportError:
            return 0
        return response.status_code


async def own_pair(pki: Pki, authority: Authority) -> tuple[Path, Path]:
    """Return a certificate of a client, and its key."""
    chain, key = await asyncio.to_thread(pki.issue, authority)
    paths = pki.scratch / "client.crt", pki.scratch / "client.key"
    for path, content in zip(paths, (chain, key), strict=True):
        await asyncio.to_thread(path.write_bytes, content)
    return paths


async def test_the_page_is_encrypted_and_follows_its_certificate(pki: Pki) -> None:
    settings = TlsSettings(certificate_directory=pki.directory)
    async with running(metrics_tls=settings, certificate_poll_seconds=0.02) as epp:
        port = epp.ports.metrics
        assert await status(port, pki.first) == 200
        assert await status(port, pki.second) == 0
        async with httpx.AsyncClient(trust_env=False) as plain:
            with pytest.raises(httpx.TransportError):
                await plain.get(f"http://127.0.0.1:{port}/metrics")
        await asyncio.to_thread(write_mounted, pki.directory, *pki.issue(pki.second))
        async with asyncio.timeout(10):
            while await status(port, pki.second) != 200:
                pass  # a handshake each
        assert await status(port, pki.first) == 0


async def test_only_clients_of_the_authority_are_let_in(pki: Pki) -> None:
    authorities = pki.scratch / "clients.pem"
    await asyncio.to_thread(authorities.write_bytes, pki.first.pem)
    settings = TlsSettings(certificate_directory=pki.directory, client_authorities=authorities)
    async with running(metrics_tls=settings) as epp:
        port = epp.ports.metrics
        assert await status(port, pki.first) == 0
        assert await status(port, pki.first, await own_pair(pki, pki.second)) == 0
        assert await status(port, pki.first, await own_pair(pki, pki.first)) == 200


async def test_the_client_of_debug_pages_has_a_certificate_and_trusts_an_authority(
    pki: Pki,
) -> None:
    authorities = pki.scratch / "clients.pem"
    await asyncio.to_thread(authorities.write_bytes, pki.first.pem)
    chain, key = await own_pair(pki, pki.first)
    own = pki.scratch / "own.pem"
    await asyncio.to_thread(own.write_bytes, chain.read_bytes() + key.read_bytes())
    settings = TlsSettings(certificate_directory=pki.directory, client_authorities=authorities)

    def fetch(admin: str, **files: Any) -> bytes:
        return DebugClient(admin, **files).get("endpoints")

    async with running(metrics_tls=settings) as epp:
        admin = f"https://127.0.0.1:{epp.ports.metrics}"
        trusted = {"ca_file": str(authorities), "cert_file": str(own)}
        assert b'"endpoints"' in await asyncio.to_thread(fetch, admin, **trusted)
        for files in ({}, {"cert_file": str(own)}, {"ca_file": str(authorities)}):
            with pytest.raises(DebugPageError, match="/debug/endpoints: "):
                await asyncio.to_thread(fetch, admin, **files)


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("--admin-ca-file", {"ca_file": "missing.pem"}),
        ("--admin-cert-file", {"cert_file": "missing.pem"}),
    ],
)
def test_a_certificate_of_the_client_that_is_missing_is_named(
    option: str, files: dict[str, Any]
) -> None:
    with pytest.raises(DebugPageError, match=f"{option}: missing.pem: no such file or directory"):
        DebugClient("https://127.0.0.1:9090", **files)


async def test_handshakes_that_never_end_keep_nobody_out(pki: Pki) -> None:
    settings = TlsSettings(certificate_directory=pki.directory)
    async with running(metrics_tls=settings, max_metrics_connections=4) as epp:
        port = epp.ports.metrics
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        assert await status(port, pki.first) == 200
        for _, writer in silent:
            writer.close()


async def test_a_missing_certificate_ends_the_start(tmp_path: Path) -> None:
    settings = make_settings(metrics_tls=TlsSettings(certificate_directory=tmp_path))
    app = await asyncio.to_thread(App, settings)
    missing = pytest.RaisesExc(TlsError, match=f"{tmp_path}.*the file is missing")
    with pytest.RaisesGroup(missing):
        await app.run(asyncio.Event())
