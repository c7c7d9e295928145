"""Runs a reflector in a test, and waits for its events."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import msgspec

from epp.kubernetes.api import ApiClient, ObjectMeta, Reflector, Resource
from epp.kubernetes.api.events import ObjectDecoder

_T = TypeVar("_T", bound="Thing")


class ThingMeta(ObjectMeta, frozen=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Thing(msgspec.Struct):
    """A ConfigMap, or another object with ``data``."""

    metadata: ThingMeta
    data: dict[str, str] = {}


class Followed(Generic[_T]):
    """A running reflector."""

    def __init__(self, client: ApiClient, resource: Resource, type_: type[_T], **how: Any) -> None:
        self.calls = 0
        """How often ``changed`` was called."""
        self._news = asyncio.Event()
        self._client = client
        self._decoder = ObjectDecoder(type_)
        self.reflector = Reflector(
            client, resource, self._decoder, changed=self._changed, rng=random.Random(1), **how
        )
        self._list = {"namespace": how.get("namespace")}

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.reflector.objects}

    @property
    def values(self) -> dict[str, str | None]:
        """The datum ``value`` of each object by its name."""
        return {key[1]: each.data.get("value") for key, each in self.reflector.objects.items()}

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds``; it is asked at each call of ``changed``."""
        while not holds():
            self._news.clear()
            await self._news.wait()

    async def synced(self) -> None:
        await self.until(lambda: self.reflector.status.is_synced)

    async def until_equal(self, client: ApiClient | None = None) -> None:
        """Wait until the copy equals a fresh list; the objects must not change any more.

        Args:
            client: Lists them, if the reflector's own client does not ask the API server.
        """
        fresh = await self.fresh(client or self._client)
        await self.until(lambda: dict(self.reflector.objects) == fresh)

    async def fresh(self, client: ApiClient) -> dict[tuple[str, str], _T]:
        """List all objects, unselected."""
        body = await client.list_page(
            self.reflector.resource,
            namespace=self.reflector.namespace,
            params={},
            timeout_seconds=10,
        )
        items = self._decoder.page(body).items
        return {(each.metadata.namespace, each.metadata.name): each for each in items}

    def _changed(self) -> None:
        self.calls += 1
        self._news.set()


@asynccontextmanager
async def following(
    client: ApiClient, resource: Resource, type_: type[_T], **how: Any
) -> AsyncIterator[Followed[_T]]:
    """Run a reflector that waits 10 ms where it would wait a second or more."""
    followed = Followed(client, resource, type_, **({"sleep": briefly} | how))
    task = asyncio.create_task(followed.reflector.run())
    try:
        yield followed
        assert not task.done(), "a reflector ends only when it is cancelled"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def briefly(_: float) -> None:
    """Wait 10 ms instead."""
    await asyncio.sleep(0.01)
