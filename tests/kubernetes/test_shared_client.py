"""A client of the API server that the first user opens and the last one closes."""

import asyncio
from pathlib import Path

import pytest

from epp.kubernetes.api import ConfigurationError, Connection
from epp.kubernetes.shared_client import SharedClient

from .conftest import connect
from .fake_api import PODS, FakeApi


class Connects:
    """Counts how often the API server is looked for."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        self.calls = 0
        self.fails = False
        self._folder = folder
        self._url = api.url

    def __call__(self) -> Connection:
        self.calls += 1
        if self.fails:
            raise ConfigurationError("no cluster")
        return connect(self._folder, self._url)


async def test_users_share_one_client_until_the_last_has_left(api: FakeApi, tmp_path: Path) -> None:
    connects = Connects(tmp_path, api)
    shared = SharedClient(connects)
    async with shared.use() as first:
        async with shared.use() as second:
            assert second is first
        await first.find(PODS)  # still open
    assert connects.calls == 1
    with pytest.raises(Exception, match="closed"):
        await first.find(PODS)
    async with shared.use() as third:
        assert third is not first
    assert connects.calls == 2


async def test_users_that_come_at_the_same_time_wait_for_one_client(
    api: FakeApi, tmp_path: Path
) -> None:
    connects = Connects(tmp_path, api)
    shared = SharedClient(connects)

    async def use() -> int:
        async with shared.use() as client:
            await client.find(PODS)
            return id(client)

    assert len(set(await asyncio.gather(*(use() for _ in range(5))))) == 1
    assert connects.calls == 1


async def test_after_a_failure_the_next_user_tries_again(api: FakeApi, tmp_path: Path) -> None:
    connects = Connects(tmp_path, api)
    connects.fails = True
    shared = SharedClient(connects)
    with pytest.raises(ConfigurationError, match="no cluster"):
        async with shared.use():
            pass
    connects.fails = False
    async with shared.use() as client:
        await client.find(PODS)
