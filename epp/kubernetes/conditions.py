"""Conditions in the status of an object, by the conventions of the Gateway API."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from epp.kubernetes.api import Resource


@dataclass(frozen=True, slots=True)
class Condition:
    """One statement about an object."""

    type: str
    is_true: bool
    reason: str
    """A word in CamelCase, for programs."""
    message: str
    """A text for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStatus:
    """The wanted and the present status of an object."""

    resource: Resource
    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    """Generation of the spec that the conditions describe."""
    wanted: tuple[Condition, ...]
    found: Any
    """The present status as JSON; it may have any form."""

    @property
    def key(self) -> tuple[Resource, str]:
        """Identity of the object, different from others that had its name."""
        return self.resource, self.uid

    @property
    def is_current(self) -> bool:
        """Whether the status has the wanted conditions."""
        present = {each.get("type"): each for each in self._present()}
        return all(
            (found := present.get(condition.type)) is not None
            and found.get("reason") == condition.reason
            and found.get("message") == condition.message
            and found.get("status") == _status(condition)
            and found.get("observedGeneration") == self.generation
            for condition in self.wanted
        )

    def patch(self, now: float) -> Mapping[str, Any]:
        """Return the JSON merge patch that makes the status current.

        A merge patch replaces lists, so it includes the conditions of other writers. The resource
        version makes the API server refuse it (409) if they have changed since.

        Args:
            now: Seconds since 1970, for conditions whose status changes.
        """
        moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = {str(each.get("type")): each for each in self._present()}
        for condition in self.wanted:
            before = conditions.get(condition.type, {})
            since = before.get("lastTransitionTime")
            if since is None or before.get("status") != _status(condition):
                since = moment
            conditions[condition.type] = before | {
                "type": condition.type,
                "status": _status(condition),
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": self.generation,
                "lastTransitionTime": since,
            }
        return {
            "metadata": {"resourceVersion": self.resource_version},
            "status": {"conditions": list(conditions.values())},
        }

    def _present(self) -> Sequence[dict[str, Any]]:
        conditions = self.found.get("conditions") if isinstance(self.found, dict) else None
        if not isinstance(conditions, list):
            return []
        return [each for each in conditions if isinstance(each, dict)]


def _status(condition: Condition) -> str:
    return "True" if condition.is_true else "False"
