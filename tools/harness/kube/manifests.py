"""Objects of any kind, sent to the API server as ``kubectl apply`` would."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import httpx

from tools.harness.kube.crds import Document
from tools.harness.kube.objects import checked

FIRST: Final = ("Namespace", "ServiceAccount", "Role", "ClusterRole")
"""Kinds that others refer to."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """Sends objects; a field unknown to the API server is an error."""

    admin: httpx.AsyncClient
    _kinds: dict[tuple[str, str], Mapping[str, object]] = field(default_factory=dict)
    """Resources by API version and kind."""

    async def check(self, objects: Iterable[Document], namespace: str = "default") -> None:
        """Validate objects with a dry run of the API server.

        Raises:
            RefusedError: One of them is invalid.
        """
        for each in objects:
            await self._send(each, namespace, dryRun="All")

    async def create(self, objects: Iterable[Document], namespace: str) -> None:
        """Create objects, those that others refer to first.

        Raises:
            RefusedError: One of them is invalid, or its name exists already.
        """
        for each in sorted(objects, key=lambda each: each["kind"] not in FIRST):
            await self._send(each, namespace)

    async def _send(self, document: Document, namespace: str, **query: str) -> None:
        resource = await self._resource(document["apiVersion"], document["kind"])
        path = _prefix(document["apiVersion"])
        if resource["namespaced"]:
            path += f"/namespaces/{document['metadata'].get('namespace', namespace)}"
        params = {"fieldValidation": "Strict", **query}
        checked(await self.admin.post(f"{path}/{resource['name']}", json=document, params=params))

    async def _resource(self, version: str, kind: str) -> Mapping[str, object]:
        if (version, kind) not in self._kinds:
            served = checked(await self.admin.get(_prefix(version)))["resources"]
            for each in served:
                if "/" not in each["name"]:
                    self._kinds[version, each["kind"]] = each
        return self._kinds[version, kind]


def _prefix(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"
