"""The history of a Lease from a watch: its holders in order."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from tools.harness.kube.crds import Document
from tools.harness.kube.objects import Namespace, checked


def leases(namespace: Namespace) -> str:
    """Return the path of the namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"


@asynccontextmanager
async def lease_history(
    namespace: Namespace, name: str, news: asyncio.Event
) -> AsyncIterator[list[Document]]:
    """Watch a Lease; give its specs as they come, all of them at the end.

    Args:
        namespace: The Lease's.
        name: The Lease.
        news: Set at each spec.
    """
    specs: list[Document] = []
    path = leases(namespace)
    query = {"watch": "true", "fieldSelector": f"metadata.name={name}"}

    async def follow() -> None:
        async for line in response.aiter_lines():
            specs.append(json.loads(line)["object"]["spec"])
            news.set()

    async with namespace.admin.stream("GET", path, params=query, timeout=None) as response:
        following = asyncio.create_task(follow())
        yield specs
        # The last state may not have come yet.
        last = checked(await namespace.admin.get(f"{path}/{name}"))["spec"]
        while last not in specs:
            news.clear()
            await news.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def holders(specs: list[Document]) -> list[str]:
    """Return the holders in their order; check that each new one is a transition."""
    names = [""]
    transitions = -1
    for spec in specs:
        name = spec["holderIdentity"]
        if name != names[-1]:
            transitions += bool(name)
            names.append(name)
        assert spec["leaseTransitions"] == transitions
    return names[1:]


def seconds_until_taken(specs: list[Document]) -> float:
    """Return the time from the first holder's last renewal until another one took the Lease.

    Both times are in the Lease: how long the tests or their replicas were held up is no part of it.
    """
    first = specs[0]["holderIdentity"]
    renewed = [each["renewTime"] for each in specs if each["holderIdentity"] == first][-1]
    taken = next(each["acquireTime"] for each in specs if each["holderIdentity"] not in {first, ""})
    return (datetime.fromisoformat(taken) - datetime.fromisoformat(renewed)).total_seconds()
