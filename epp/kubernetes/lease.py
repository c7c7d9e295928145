"""Leases (``coordination.k8s.io/v1``) as leader election reads and writes them.

A Lease is kept as the server sent it and written back whole, so labels, owners and fields of newer
Kubernetes versions survive.
"""

import random
from datetime import datetime
from typing import Any, Final

import msgspec

from epp.kubernetes.api import Resource

LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("", "v1", "events", "Event")

LEASE_SECONDS: Final = 15
"""How long the others wait for a renewal before they take the Lease."""

_RELEASED_SECONDS: Final = 1
"""Duration in a released Lease, where it has no meaning: the API wants a positive one."""


class Lease(msgspec.Struct, frozen=True):
    """A Lease; methods return changed copies."""

    metadata: dict[str, Any]
    spec: dict[str, Any] = {}

    @property
    def holder(self) -> str:
        """Identity of the holder; empty if the Lease is free."""
        return self.spec.get("holderIdentity") or ""

    @property
    def seconds(self) -> float:
        """Time without a change after which the Lease has expired.

        It is never less than ours: the holder leads for up to two thirds of that after its last
        renewal, whatever somebody has since written into the Lease.
        """
        return max(LEASE_SECONDS, self.spec.get("leaseDurationSeconds") or 0)

    def held_by(self, identity: str, now: datetime) -> "Lease":
        """Return the Lease as renewed by its holder, or taken by another process."""
        times = {"renewTime": _micro_time(now)}
        if self.holder != identity:
            times["acquireTime"] = times["renewTime"]
        transitions = self.spec.get("leaseTransitions")
        if transitions is None:
            transitions = 0  # nobody has held it before
        elif self.holder != identity:
            transitions += 1
        return self._with(
            holderIdentity=identity,
            leaseDurationSeconds=LEASE_SECONDS,
            leaseTransitions=transitions,
            **times,
        )

    def released(self, now: datetime) -> "Lease":
        """Return the Lease without a holder."""
        return self._with(
            holderIdentity="",
            leaseDurationSeconds=_RELEASED_SECONDS,
            renewTime=_micro_time(now),
        )

    def _with(self, **fields: object) -> "Lease":
        return Lease(self.metadata, self.spec | fields)


class KubernetesEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An Event, which ``kubectl describe`` shows with the object for an hour."""

    metadata: dict[str, Any]
    involved_object: dict[str, Any]
    type: str
    reason: str
    message: str
    source: dict[str, str]
    first_timestamp: str
    last_timestamp: str
    count: int


def leadership_event(
    lease: Lease, identity: str, now: datetime, rng: random.Random
) -> KubernetesEvent:
    """Return the Event that reports that ``identity`` has begun to lead."""
    identifying = ("namespace", "name", "uid", "resourceVersion")
    metadata = {name: lease.metadata.get(name, "") for name in identifying}
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return KubernetesEvent(
        metadata={
            "namespace": metadata["namespace"],
            "name": f"{metadata['name']}.{rng.getrandbits(64):016x}",
        },
        involved_object={"apiVersion": LEASES.api_version, "kind": LEASES.kind, **metadata},
        type="Normal",
        reason="LeaderElection",
        message=f"{identity} became leader",
        source={"component": identity},
        first_timestamp=time,
        last_timestamp=time,
        count=1,
    )


def _micro_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
