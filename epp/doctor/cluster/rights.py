"""The calls that ``epp serve`` makes to the Kubernetes API, and the kinds that it reads."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from epp.data_layer import ObjectKind
from epp.doctor.cluster.view import Need
from epp.kubernetes.api import Resource
from epp.kubernetes.lease import EVENTS, LEASES
from epp.kubernetes.pods import PODS
from epp.kubernetes.policy_objects import OBJECTIVES, REWRITES
from epp.kubernetes.pools import POOLS
from epp.kubernetes.source import POOL_GROUP, PodSource, PoolsSource
from epp.kubernetes.token_reviews import ACCESS_REVIEWS, TOKEN_REVIEWS

_READ: Final = ("list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUse:
    """How an endpoint picker uses its cluster."""

    source: PodSource | PoolsSource
    has_policies: bool = True
    """Whether objectives and rewrites come from the cluster."""
    writes_status: bool = True
    elects_leader: bool = False
    reviews_tokens: bool = True
    """Whether the cluster authenticates clients of the metrics port."""
    objects: tuple[tuple[ObjectKind, bool], ...] = ()
    """Kinds that plugins read, and whether the plugins are of little use without them."""

    @property
    def has_pools(self) -> bool:
        """Whether the endpoints are those of pools."""
        return isinstance(self.source, PoolsSource) or self.source.pool is not None

    @property
    def pool_group(self) -> str:
        """API group of the pools."""
        if isinstance(self.source, PoolsSource):
            return self.source.group
        return POOL_GROUP if self.source.pool is None else self.source.pool.group


@dataclass(frozen=True, slots=True)
class KindUse:
    """A kind that the endpoint picker reads; possibly one of several alternatives."""

    resource: Resource
    title: str
    need: Need
    without: str
    verbs: tuple[str, ...] = _READ
    status_verbs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallUse:
    """A call for objects of a built-in kind."""

    resource: Resource
    verbs: tuple[str, ...]
    need: Need
    without: str
    is_namespaced: bool = True


def kinds_of(use: ClusterUse) -> Iterator[KindUse]:
    """Yield the kinds that an API server may lack."""
    if use.has_pools:
        for group in dict.fromkeys((use.pool_group, POOL_GROUP)):
            if group in POOLS:
                yield KindUse(
                    POOLS[group][0],
                    "InferencePool",
                    Need.SERVE,
                    "the pool is not found, and there are no endpoints",
                )
        if use.has_policies:
            status = ("patch",) if use.writes_status else ()
            for resources, without in (
                (OBJECTIVES, "every request has priority 0"),
                (REWRITES, "no model name is rewritten"),
            ):
                for each in resources:
                    yield KindUse(each, each.kind, Need.FEATURE, without, status_verbs=status)
    for kind, is_needed in use.objects:
        yield KindUse(
            Resource(kind.group, kind.version, "", kind.kind),
            kind.kind,
            Need.FEATURE,
            "the plugins that read it know of none"
            + ("" if is_needed else ", which they can do without"),
        )


def calls_of(use: ClusterUse) -> Iterator[CallUse]:
    """Yield the calls for kinds that every API server has."""
    yield CallUse(PODS, _READ, Need.SERVE, "there are no endpoints")
    if use.elects_leader:
        yield CallUse(
            LEASES,
            ("get", "create", "update"),
            Need.SERVE,
            "no replica becomes the leader, and none is ready",
        )
        yield CallUse(EVENTS, ("create",), Need.FEATURE, "no Event tells of a new leader")
    if use.reviews_tokens:
        for each in (TOKEN_REVIEWS, ACCESS_REVIEWS):
            yield CallUse(
                each,
                ("create",),
                Need.FEATURE,
                "the metrics port refuses all clients with 503",
                is_namespaced=False,
            )
