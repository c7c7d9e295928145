"""Queries an API server for its version, its kinds, and the rights of an account."""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from epp.doctor.cluster.rights import ClusterUse, calls_of, kinds_of
from epp.doctor.cluster.view import Access, ClusterView, Kind, Need
from epp.kubernetes.api import ApiClient, Connection, KubernetesApiError, Resource
from epp.kubernetes.token_reviews import ACCESS_REVIEWS

_AUTHORIZATION: Final = "authorization.k8s.io"
_OWN_REVIEWS: Final = Resource(
    _AUTHORIZATION, "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"
)
_NO_STATUS: Final = "its status does not say whether it is in use"
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A right to query."""

    resource: Resource
    subresource: str
    verb: str
    namespace: str
    need: Need
    without: str


class _Attributes(msgspec.Struct, frozen=True, omit_defaults=True):
    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    resource_attributes: _Attributes
    user: str = ""
    groups: list[str] = []


class _Review(msgspec.Struct, frozen=True):
    spec: _Spec


class _Status(msgspec.Struct, frozen=True):
    allowed: bool = False
    reason: str = ""


class _Reviewed(msgspec.Struct, frozen=True):
    status: _Status


async def ask(connection: Connection, use: ClusterUse, account: str = "") -> ClusterView:
    """Return the responses of the API server.

    Args:
        connection: The API server.
        use: How an endpoint picker uses the cluster.
        account: Name of the service account in the namespace whose rights are queried; "" for the
            account of the connection.
    """
    namespace = use.source.namespace
    user = f"system:serviceaccount:{namespace}:{account}" if account else ""
    async with ApiClient(connection) as client:
        try:
            version = await client.server_version()
            kinds, wanted = await _kinds(client, use)
            wanted += [
                _Wanted(
                    each.resource,
                    "",
                    verb,
                    namespace if each.is_namespaced else "",
                    each.need,
                    each.without,
                )
                for each in calls_of(use)
                for verb in each.verbs
            ]
            access = await _reviewed(client, wanted, user)
        except KubernetesApiError as error:
            return ClusterView(server=connection.server, account=user, fault=str(error))
    return ClusterView(
        server=connection.server, account=user, version=version, kinds=kinds, access=access
    )


async def _kinds(client: ApiClient, use: ClusterUse) -> tuple[tuple[Kind, ...], list[_Wanted]]:
    """Return the kinds, and the rights needed on the kinds that are served."""
    kinds: list[Kind] = []
    wanted: list[_Wanted] = []
    for each in kinds_of(use):
        found = await client.find(each.resource)
        resource = each.resource if found is None else found.resource
        name = f"{resource.full_name if resource.plural else resource.kind} ({resource.version})"
        kinds.append(Kind(name, each.title, each.need, each.without, found is not None))
        if found is None:
            continue
        namespace = use.source.namespace if found.is_namespaced else ""
        for subresource, verbs in (("", each.verbs), ("status", each.status_verbs)):
            need = Need.FEATURE if subresource else each.need
            without = (
                "its status does not say whether it is in use" if subresource else each.without
            )
            wanted += [
                _Wanted(resource, subresource, verb, namespace, need, without) for verb in verbs
            ]
    return tuple(kinds), wanted


async def _reviewed(client: ApiClient, wanted: list[_Wanted], user: str) -> tuple[Access, ...]:
    turns = asyncio.Semaphore(_AT_ONCE)
    groups: list[str] = []
    if user:
        namespace = user.split(":")[2]
        accounts = "system:serviceaccounts"
        groups = [accounts, f"{accounts}:{namespace}", "system:authenticated"]

    async def review(right: _Wanted) -> Access:
        attributes = _Attributes(
            right.verb,
            right.resource.group,
            right.resource.plural,
            right.subresource,
            right.namespace,
        )
        body = _Review(_Spec(attributes, user, groups))
        async with turns:
            resource = ACCESS_REVIEWS if user else _OWN_REVIEWS
            status = (await client.post(resource, body, _Reviewed)).status
        plural = right.resource.plural
        return Access(
            group=right.resource.group,
            resource=f"{plural}/{right.subresource}" if right.subresource else plural,
            verb=right.verb,
            namespace=right.namespace,
            need=right.need,
            without=right.without,
            allowed=status.allowed,
            reason=status.reason,
        )

    return tuple(await asyncio.gather(*map(review, wanted)))
