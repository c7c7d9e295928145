"""The state of a fake API server: objects, resource versions and the history that watches read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from epp.kubernetes.api import Resource

Json = dict[str, Any]
Key = tuple[str, str]
Matches = Callable[[Json], bool]


class RefusedError(Exception):
    """What the server refuses, as its ``Status``."""

    def __init__(
        self, code: int, reason: str, message: str, *, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after

    @property
    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "code": self.code,
        }


def expired() -> RefusedError:
    return RefusedError(410, "Expired", "The resourceVersion for the provided watch is too old.")


@dataclass(frozen=True)
class Change:
    """One change of one object; ``before`` or ``after`` is None."""

    revision: int
    resource: Resource
    before: Json | None
    after: Json | None

    def event(self, matches: Matches) -> Json | None:
        """Return what a watch of the objects that match is told of it."""
        was = self.before is not None and matches(self.before)
        now = self.after is not None and matches(self.after)
        if now:
            return {"type": "MODIFIED" if was else "ADDED", "object": self.after}
        if not was:
            return None
        # The last state before the deletion, or the state that no longer matches.
        assert self.before is not None
        return {"type": "DELETED", "object": _versioned(self.before, self.revision)}


class FakeState:
    """Objects of any resource, with the resource versions of etcd: one counter for all."""

    def __init__(self) -> None:
        self.revision = 1000
        self.compacted = 0
        self.now = "2026-11-24T00:00:00Z"
        """Creation timestamp of new objects."""
        self.history: list[Change] = []
        self.has_status: set[Resource] = set()
        self.listeners: list[Callable[[Change], None]] = []
        self._objects: dict[Resource, dict[Key, Json]] = {}

    def get(self, resource: Resource, key: Key) -> Json:
        try:
            return self._objects.get(resource, {})[key]
        except KeyError:
            text = f'{resource.plural} "{key[1]}" not found'
            raise RefusedError(404, "NotFound", text) from None

    def select(self, resource: Resource, matches: Matches) -> list[Json]:
        objects = self._objects.get(resource, {})
        return [objects[key] for key in sorted(objects) if matches(objects[key])]

    def create(self, resource: Resource, namespace: str, body: Json) -> Json:
        key = namespace, body["metadata"]["name"]
        if key in self._objects.get(resource, {}):
            text = f'{resource.plural} "{key[1]}" already exists'
            raise RefusedError(409, "AlreadyExists", text)
        metadata = body["metadata"] | {"uid": str(uuid4())}
        metadata["creationTimestamp"] = self.now
        if resource in self.has_status:
            metadata["generation"] = 1
        if namespace:
            metadata["namespace"] = namespace
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self._store(resource, key, None, head | body | {"metadata": metadata})

    def replace(self, resource: Resource, key: Key, body: Json, *, status: bool = False) -> Json:
        """Replace an object, or its status alone; compare resource versions if it has one."""
        before = self.get(resource, key)
        version = body.get("metadata", {}).get("resourceVersion")
        if version is not None and version != before["metadata"]["resourceVersion"]:
            text = (
                f'Operation cannot be fulfilled on {resource.plural} "{key[1]}": the object has '
                "been modified; please apply your changes to the latest version and try again"
            )
            raise RefusedError(409, "Conflict", text)
        if status:
            after = before | {"status": body.get("status")}
        else:
            kept = ("uid", "creationTimestamp", "namespace", "name", "generation")
            metadata = body["metadata"] | {
                name: before["metadata"][name] for name in kept if name in before["metadata"]
            }
            after = {"apiVersion": before["apiVersion"], "kind": before["kind"]}
            after |= body | {"metadata": metadata}
            if resource in self.has_status:
                after.pop("status", None)
                after |= {"status": before["status"]} if "status" in before else {}
                if after.get("spec") != before.get("spec"):
                    metadata["generation"] += 1
        return self._store(resource, key, before, after)

    def patch(self, resource: Resource, key: Key, patch: Json, *, status: bool = False) -> Json:
        """Apply a merge patch."""
        return self.replace(resource, key, _merged(self.get(resource, key), patch), status=status)

    def delete(self, resource: Resource, key: Key) -> Json:
        before = self.get(resource, key)
        del self._objects[resource][key]
        self.revision += 1
        self._publish(Change(self.revision, resource, before, None))
        return before

    def compact(self) -> None:
        """Forget the history: no watch can begin before the present revision."""
        self.compacted = self.revision
        self.history.clear()

    def restore(self) -> None:
        """Set the counter back, as a restore of etcd from an older snapshot does."""
        self.revision //= 2
        self.compacted = 0
        self.history.clear()
        for objects in self._objects.values():
            for key, each in objects.items():
                self.revision += 1
                objects[key] = _versioned(each, self.revision)

    def since(self, resource: Resource, revision: int) -> list[Change]:
        """Return the changes after a revision."""
        if revision < self.compacted:
            raise expired()
        if revision > self.revision:
            text = f"Too large resource version: {revision}, current: {self.revision}"
            raise RefusedError(504, "Timeout", text)
        return [
            each for each in self.history if each.revision > revision and each.resource == resource
        ]

    def _store(self, resource: Resource, key: Key, before: Json | None, after: Json) -> Json:
        if before is not None and _versioned(after, 0) == _versioned(before, 0):
            return before  # an update without a change is none
        self.revision += 1
        # A copy: the caller may change what it has handed over.
        stored: Json = json.loads(json.dumps(_versioned(after, self.revision)))
        self._objects.setdefault(resource, {})[key] = stored
        self._publish(Change(self.revision, resource, before, stored))
        return stored

    def _publish(self, change: Change) -> None:
        self.history.append(change)
        for listener in tuple(self.listeners):
            listener(change)


def _versioned(body: Json, revision: int) -> Json:
    return body | {"metadata": body["metadata"] | {"resourceVersion": str(revision)}}


def _merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def selection(namespace: str | None, label_selector: str, field_selector: str) -> Matches:
    """Return whether an object is in the namespace and matches both selectors.

    Of field selectors only the ``metadata.name`` and ``metadata.namespace`` of custom resources.
    """
    label_tests = [_label_test(each.strip()) for each in _split(label_selector)]
    fields: dict[str, str] = {}
    for each in filter(None, field_selector.split(",")):
        name, _, value = each.replace("==", "=").partition("=")
        if name not in {"metadata.name", "metadata.namespace"}:
            raise RefusedError(400, "BadRequest", f'field label not supported: "{name}"')
        fields[name.removeprefix("metadata.")] = value

    def matches(body: Json) -> bool:
        metadata = body["metadata"]
        labels = metadata.get("labels") or {}
        return (
            (namespace is None or metadata.get("namespace", "") == namespace)
            and all(test(labels) for test in label_tests)
            and all(metadata.get(name, "") == value for name, value in fields.items())
        )

    return matches


def _split(selector: str) -> list[str]:
    """Split at the commas outside parentheses."""
    parts, depth = [""], 0
    for char in selector:
        depth += (char == "(") - (char == ")")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part for part in parts if part.strip()]


def _label_test(part: str) -> Callable[[Mapping[str, str]], bool]:
    words = part.replace("(", " (").split(maxsplit=2)
    if len(words) == 3 and words[1] in {"in", "notin"} and words[2].endswith(")"):
        key, wanted = words[0], {value.strip() for value in words[2][1:-1].split(",")}
        if words[1] == "in":
            return lambda labels: labels.get(key) in wanted
        return lambda labels: labels.get(key) not in wanted
    if "!=" in part:
        key, _, value = part.partition("!=")
        return lambda labels: labels.get(key.strip()) != value.strip()
    if "=" in part:
        key, _, value = part.replace("==", "=").partition("=")
        return lambda labels: labels.get(key.strip()) == value.strip()
    if len(words) != 1:
        raise RefusedError(400, "BadRequest", f"unable to parse requirement: {part}")
    if part.startswith("!"):
        return lambda labels: part[1:].strip() not in labels
    return lambda labels: part in labels
