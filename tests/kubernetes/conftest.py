"""Fixtures: a fake API server, and a client of it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epp.kubernetes.api import ApiClient, Connection, load_connection

from .fake_api import FakeApi, fake_api


def write_kubeconfig(path: Path, server: str, user: str = "{}") -> Path:
    """Write a kubeconfig for a server; ``user`` is YAML."""
    path.write_text(
        "current-context: c\n"
        f"clusters: [{{name: k, cluster: {{server: '{server}'}}}}]\n"
        f"users: [{{name: u, user: {user}}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u, namespace: d}}]\n"
    )
    return path


def connect(folder: Path, server: str, user: str = "{}") -> Connection:
    """Return the connection of a kubeconfig with one server and one user."""
    path = write_kubeconfig(folder / "kubeconfig", server, user)
    return load_connection({"KUBECONFIG": str(path)})


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLIENT_CERTIFICATE = "{client-certificate: leaf.crt, client-key: leaf.key}"


def tls_config(folder: Path, cluster: str, user: str = CLIENT_CERTIFICATE) -> dict[str, str]:
    """Write a kubeconfig with a cluster and a user, both YAML; return the environment."""
    path = folder / "config"
    path.write_text(
        f"current-context: c\nclusters: [{{name: k, cluster: {{{cluster}}}}}]\n"
        f"users: [{{name: u, user: {user}}}]\n"
        "contexts: [{name: c, context: {cluster: k, user: u}}]\n"
    )
    return {"KUBECONFIG": str(path)}


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api() as server:
        yield server


@pytest.fixture
async def client(api: FakeApi, tmp_path: Path) -> AsyncIterator[ApiClient]:
    connection = await asyncio.to_thread(connect, tmp_path, api.url)
    async with ApiClient(connection) as made:
        yield made
