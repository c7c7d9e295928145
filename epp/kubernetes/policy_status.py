"""The conditions of objectives and rewrites."""

from collections.abc import Mapping
from typing import Final

from epp.data_layer import Objective, Rewrite
from epp.kubernetes.api import Resource
from epp.kubernetes.conditions import Condition
from epp.kubernetes.source import PoolRef

_ACCEPTED: Final = "Accepted"
_RESOLVED_REFS: Final = "ResolvedRefs"
_MAX_NAMED: Final = 5
"""Models that a message names."""


def accepted(policy: Objective | Rewrite, in_vain: Mapping[str, str]) -> Condition:
    """Return the condition that says whether a valid object is in use.

    Args:
        policy: The object.
        in_vain: The models that a rewrite of its name matches in vain ("" for all models), each
            with the rewrite that decides instead.
    """
    if not isinstance(policy, Rewrite) or not in_vain:
        return Condition(_ACCEPTED, True, "Accepted", "in use")
    named = [f"{model or 'all models'} by {winner}" for model, winner in sorted(in_vain.items())]
    more = [f"and {len(named) - _MAX_NAMED} more"] if len(named) > _MAX_NAMED else []
    text = f"rewrites before it decide about {', '.join([*named[:_MAX_NAMED], *more])}"
    matched = {model for rule in policy.rules for model in rule.models or ("",)}
    if matched <= in_vain.keys():
        return Condition(_ACCEPTED, False, "Conflicted", f"no rule is in use; {text}")
    return Condition(_ACCEPTED, True, "PartiallyConflicted", f"in use, but {text}")


def invalid(reason: str) -> Condition:
    """Return the condition of an object that cannot be read."""
    return Condition(_ACCEPTED, False, "Invalid", reason)


def superseded(used: Resource) -> Condition:
    """Return the condition of an object whose kind is used in another API group."""
    text = f"{used.kind} is read from {used.api_version} alone, as the API server has it"
    return Condition(_ACCEPTED, False, "OtherGroupInUse", f"{text}; create the object there")


def resolved_refs(pool: PoolRef, *, exists: bool) -> Condition:
    """Return the condition that says whether the pool of an object's ``poolRef`` exists."""
    name = f"InferencePool {pool.name} of {pool.group}"
    if exists:
        return Condition(_RESOLVED_REFS, True, "ResolvedRefs", f"{name} exists")
    return Condition(_RESOLVED_REFS, False, "PoolNotFound", f"there is no {name}")
