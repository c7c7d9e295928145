"""Objects of a namespace: created, patched and deleted, many at a time.

Each test has its own namespace, so it sees no other test's objects.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from tools.harness.kube.crds import OBJECTIVE, POOL, REWRITE, Document, Kind, definitions
from tools.harness.kube.errors import RefusedError

PARALLEL_REQUESTS = 8
"""200 pods take 0.7 to 1.1 s on 2 cores with any number from 4 to 64."""

T = TypeVar("T")

MERGE_PATCH = {"content-type": "application/merge-patch+json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The fields of a pod that matter to an endpoint picker."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    ip: str = ""
    """Address; empty if no kubelet has assigned one yet."""
    ready: bool = True
    node: str = ""
    """A pod that is bound to a node terminates gracefully, others are deleted at once."""

    def document(self) -> Document:
        """Return the pod without its status, which the API server ignores in a new pod."""
        metadata = {
            "name": self.name,
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
        }
        spec: Document = {"containers": [{"name": "server", "image": "none"}]}
        if self.node:
            spec["nodeName"] = self.node
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def pod_status(*, ip: str, ready: bool) -> Document:
    """Return a patch of a pod's status, as a kubelet makes it."""
    condition = {"type": "Ready", "status": str(ready)}
    status: Document = {"phase": "Running", "conditions": [condition]}
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    return {"status": status}


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace, whose objects the administrator can change."""

    name: str
    admin: httpx.AsyncClient

    def path(self, kind: Kind | str, name: str = "") -> str:
        """Return the URL path of a kind (custom, or the plural of a core one) or of an object."""
        if isinstance(kind, str):
            prefix, plural = "/api/v1", kind
        else:
            prefix, plural = f"/apis/{kind.api_version}", kind.plural
        return "/".join(filter(None, (f"{prefix}/namespaces/{self.name}/{plural}", name)))

    async def create_pods(self, *pods: Pod) -> None:
        """Create pods and set their status."""
        await _each(self._create_pod, pods)

    async def patch_pods(self, patches: Mapping[str, Document]) -> None:
        """Merge a patch into each pod named; a patch of the status changes nothing else."""
        await _each(lambda name: self._patch_pod(name, patches[name]), patches)

    async def delete_pods(self, *names: str, grace_seconds: int = 0) -> None:
        """Delete pods; with a grace period, those on a node only get a ``deletionTimestamp``."""
        query = {"gracePeriodSeconds": grace_seconds}

        async def delete(name: str) -> None:
            checked(await self.admin.delete(self.path("pods", name), params=query))

        await _each(delete, names)

    async def list(self, kind: Kind | str) -> Document:
        """Return the list of all objects of a kind."""
        return checked(await self.admin.get(self.path(kind)))

    async def create(self, kind: Kind, name: str, spec: Document) -> Document:
        """Create a custom resource and return the API server's version of it.

        Raises:
            RefusedError: It is invalid, or its name exists already.
        """
        document = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": name},
            "spec": spec,
        }
        return await post(self.admin, self.path(kind), document)

    async def create_pool(
        self, name: str, labels: Mapping[str, str], ports: Sequence[int], **spec: Any
    ) -> Document:
        """Create an InferencePool; ``spec`` has further fields."""
        selected: Document = {
            "selector": {"matchLabels": dict(labels)},
            "targetPorts": [{"number": port} for port in ports],
        }
        return await self.create(POOL, name, selected | spec)

    async def create_objective(
        self, name: str, pool: str, priority: int | None = None, kind: Kind = OBJECTIVE
    ) -> Document:
        """Create an InferenceObjective."""
        spec: Document = {"poolRef": {"name": pool}}
        if priority is not None:
            spec["priority"] = priority
        return await self.create(kind, name, spec)

    async def create_rewrite(
        self, name: str, pool: str, *rules: Document, kind: Kind = REWRITE
    ) -> Document:
        """Create an InferenceModelRewrite."""
        return await self.create(kind, name, {"poolRef": {"name": pool}, "rules": list(rules)})

    async def _create_pod(self, pod: Pod) -> None:
        await post(self.admin, self.path("pods"), pod.document())
        if pod.ip or pod.ready:
            await self._patch_pod(pod.name, pod_status(ip=pod.ip, ready=pod.ready))

    async def _patch_pod(self, name: str, patch: Document) -> None:
        path = self.path("pods", name) + ("/status" if "status" in patch else "")
        checked(await self.admin.patch(path, json=patch, headers=MERGE_PATCH))


async def create_namespace(admin: httpx.AsyncClient) -> Namespace:
    """Create a namespace with a new name."""
    made = await post(admin, "/api/v1/namespaces", {"metadata": {"generateName": "test-"}})
    return Namespace(made["metadata"]["name"], admin)


async def install(admin: httpx.AsyncClient, wanted: Iterable[Document] | None = None) -> None:
    """Install definitions, by default all that the endpoint picker reads; wait until served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if wanted is None:
        wanted = definitions()
    made = [await post(admin, path, definition) for definition in wanted]
    async with asyncio.timeout(15):
        for each in made:
            spec = each["spec"]
            version = spec["versions"][0]["name"]
            served = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
            while (await admin.get(served)).is_error:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)


def checked(response: httpx.Response) -> Document:
    """Return the document of a response.

    Raises:
        RefusedError: The request failed; the message has the API server's reason.
    """
    if response.is_error:
        raise RefusedError(response)
    document: Document = response.json()
    return document


async def post(admin: httpx.AsyncClient, path: str, document: Document) -> Document:
    """Create an object and return it.

    Raises:
        RefusedError: The API server refused it.
    """
    return checked(await admin.post(path, json=document))


async def _each(call: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Call a function with each item, several at a time."""
    slots = asyncio.Semaphore(PARALLEL_REQUESTS)

    async def run(item: T) -> None:
        async with slots:
            await call(item)

    async with asyncio.TaskGroup() as tasks:
        for item in items:
            tasks.create_task(run(item))
