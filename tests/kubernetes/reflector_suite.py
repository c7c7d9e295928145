"""The behaviour of a reflector with any API server: run against the fake, and a real one.

To run it, make a subclass whose name begins with ``Test`` beside a fixture ``cluster``.
"""

import random
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from epp.kubernetes.api import ApiClient, Resource

from .followed import Thing, following


class Cluster(Protocol):
    """An API server with an empty namespace for each test."""

    @property
    def client(self) -> ApiClient:
        """May get, list and watch ``resource`` in ``namespace``."""

    @property
    def direct(self) -> ApiClient:
        """May list them, and asks the API server itself."""

    @property
    def resource(self) -> Resource:
        """Objects with labels and a map of strings, ``data``: ConfigMaps or the like."""

    @property
    def namespace(self) -> str:
        """Where the objects are."""

    async def create(self, name: str, value: str, labels: dict[str, str] | None = None) -> None:
        """Create an object with the datum ``value``."""

    async def update(self, name: str, value: str, labels: dict[str, str] | None = None) -> None:
        """Change the datum, and the labels unless they are None."""

    async def delete(self, name: str) -> None:
        """Delete an object."""

    async def compact(self) -> None:
        """Make the server forget old resource versions, as far as it can be made to."""

    def no_watches(self) -> AbstractAsyncContextManager[None]:
        """Close the connections of all watches, and keep them closed until the exit."""


class ReflectorSuite:
    """Tests that hold for every API server."""

    async def test_objects_that_exist_are_there_at_the_sync(self, cluster: Cluster) -> None:
        for name in "abc":
            await cluster.create(name, f"{name}1")
        async with following(
            cluster.client, cluster.resource, Thing, namespace=cluster.namespace
        ) as followed:
            await followed.synced()
            assert followed.values == {"a": "a1", "b": "b1", "c": "c1"}
            assert followed.calls == 1
            assert followed.reflector.status.fault is None
            assert followed.reflector.status.relists == 0

    async def test_without_objects_it_is_synced_too(self, cluster: Cluster) -> None:
        async with following(
            cluster.client, cluster.resource, Thing, namespace=cluster.namespace
        ) as followed:
            await followed.synced()
            assert followed.values == {}
            assert followed.calls == 1

    async def test_changes_are_followed(self, cluster: Cluster) -> None:
        async with following(
            cluster.client, cluster.resource, Thing, namespace=cluster.namespace
        ) as followed:
            await followed.synced()
            await cluster.create("a", "1")
            await followed.until(lambda: followed.values == {"a": "1"})
            uid = followed.reflector.objects[cluster.namespace, "a"].metadata.uid
            await cluster.update("a", "2")
            await followed.until(lambda: followed.values == {"a": "2"})
            await cluster.delete("a")
            await followed.until(lambda: not followed.values)
            await cluster.create("a", "3")
            await followed.until(lambda: followed.values == {"a": "3"})
            assert followed.reflector.objects[cluster.namespace, "a"].metadata.uid != uid

    async def test_a_label_decides_which_objects_are_followed(self, cluster: Cluster) -> None:
        await cluster.create("in", "1", {"app": "x"})
        await cluster.create("out", "1", {"app": "y"})
        async with following(
            cluster.client,
            cluster.resource,
            Thing,
            namespace=cluster.namespace,
            label_selector="app in (x, z),!old",
        ) as followed:
            await followed.synced()
            assert followed.names == {"in"}
            await cluster.update("out", "2", {"app": "z"})
            await followed.until(lambda: followed.names == {"in", "out"})
            await cluster.update("in", "2", {"app": "x", "old": ""})
            await followed.until(lambda: followed.names == {"out"})

    async def test_one_object_is_followed_by_its_name(self, cluster: Cluster) -> None:
        await cluster.create("a", "1")
        async with following(
            cluster.client,
            cluster.resource,
            Thing,
            namespace=cluster.namespace,
            field_selector="metadata.name=b",
        ) as followed:
            await followed.synced()
            await cluster.create("b", "1")
            await followed.until(lambda: followed.names == {"b"})
            await cluster.update("a", "2")
            await cluster.delete("b")
            await followed.until(lambda: not followed.names)

    async def test_changes_while_no_watch_is_open_are_seen(self, cluster: Cluster) -> None:
        for name in "abc":
            await cluster.create(name, "1")
        async with following(
            cluster.client, cluster.resource, Thing, namespace=cluster.namespace
        ) as followed:
            await followed.synced()
            async with cluster.no_watches():
                await cluster.delete("a")
                await cluster.update("b", "2")
                await cluster.create("d", "1")
            await followed.until(lambda: followed.values == {"b": "2", "c": "1", "d": "1"})

    async def test_deletions_are_seen_even_if_the_server_has_forgotten_them(
        self, cluster: Cluster
    ) -> None:
        for name in "abc":
            await cluster.create(name, "1")
        async with following(
            cluster.client, cluster.resource, Thing, namespace=cluster.namespace
        ) as followed:
            await followed.synced()
            async with cluster.no_watches():
                await cluster.delete("a")
                await cluster.update("b", "2")
                await cluster.compact()
            await followed.until(lambda: followed.values == {"b": "2", "c": "1"})
            assert followed.reflector.status.relists == 1

    async def test_two_reflectors_share_a_client(self, cluster: Cluster) -> None:
        how = {"namespace": cluster.namespace}
        async with (
            following(cluster.client, cluster.resource, Thing, **how) as first,
            following(
                cluster.client, cluster.resource, Thing, label_selector="app=x", **how
            ) as second,
        ):
            await cluster.create("a", "1")
            await cluster.create("b", "1", {"app": "x"})
            await first.until(lambda: first.names == {"a", "b"})
            await second.until(lambda: second.names == {"b"})

    async def test_many_changes_end_in_the_state_of_a_fresh_list(self, cluster: Cluster) -> None:
        rng = random.Random(7)
        existing: set[str] = set()
        async with following(
            cluster.client, cluster.resource, Thing, namespace=cluster.namespace
        ) as followed:
            await followed.synced()
            for step in range(100):
                name = f"n{rng.randrange(8)}"
                if name not in existing:
                    await cluster.create(name, str(step))
                    existing.add(name)
                elif rng.random() < 0.4:
                    await cluster.delete(name)
                    existing.discard(name)
                else:
                    await cluster.update(name, str(step))
                if step % 20 == 10:
                    async with cluster.no_watches():
                        await cluster.create(f"gap{step}", str(step))
                    existing.add(f"gap{step}")
            await followed.until_equal(cluster.direct)
            assert followed.names == existing
