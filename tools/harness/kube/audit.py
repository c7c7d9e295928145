"""The rights that an account uses, from the API server's audit log, and those of a role."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.harness.kube.crds import Document

POLICY: Document = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class Right(NamedTuple):
    """One verb on one resource, as a rule of a role allows it."""

    group: str
    resource: str
    """With its subresource, as in roles: ``pods/status``."""
    verb: str


class AuditLog:
    """The audit log of an API server."""

    def __init__(self, folder: Path) -> None:
        """Set it up with a folder for the policy and the log."""
        self._policy = folder / "audit-policy.json"
        self._log = folder / "audit.log"
        self._policy.write_text(json.dumps(POLICY))

    @property
    def flags(self) -> Sequence[str]:
        """Flags of kube-apiserver that write the log."""
        return (f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}")

    def used(self, users: Iterable[str]) -> set[Right]:
        """Return the rights that allowed calls of these users needed."""
        return {right for right, is_allowed in self._calls(set(users)) if is_allowed}

    def refused(self, users: Iterable[str]) -> set[Right]:
        """Return the rights that denied calls of these users lacked."""
        return {right for right, is_allowed in self._calls(set(users)) if not is_allowed}

    def _calls(self, users: set[str]) -> Iterator[tuple[Right, bool]]:
        # The API server may be amid its last line.
        whole_lines, _, _ = self._log.read_text().rpartition("\n")
        for line in whole_lines.splitlines():
            event = json.loads(line)
            if event["user"]["username"] in users and "objectRef" in event:
                decision = event["annotations"]["authorization.k8s.io/decision"]
                yield _right(event["verb"], event["objectRef"]), decision == "allow"


def _right(verb: str, reference: Mapping[str, Any]) -> Right:
    resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
    return Right(reference.get("apiGroup", ""), resource, verb)


def granted(rules: Iterable[Document]) -> set[Right]:
    """Return the rights of the rules of roles."""
    return {
        Right(group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
