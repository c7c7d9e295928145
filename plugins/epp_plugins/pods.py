"""Readers of the fields of pods in events of Kubernetes objects."""

from collections.abc import Mapping
from typing import Any, Final

from epp.data_layer.plugins import ObjectKind

POD: Final = ObjectKind("", "v1", "Pod")

READINESS_FIELDS: Final = ("metadata.deletionTimestamp", "status.conditions")
"""The fields that :func:`is_ready` reads."""


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether the condition ``Ready`` of a pod is True and it is not being deleted."""
    if "deletionTimestamp" in pod["metadata"]:
        return False
    conditions = pod.get("status", {}).get("conditions", ())
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def labels_of(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels of a pod, field ``metadata.labels``."""
    labels: Mapping[str, str] = pod["metadata"].get("labels", {})
    return labels
