"""Service accounts with rights of their own, for tests of RBAC."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tools.harness.kube.crds import LEGACY_GROUP, LLM_D_GROUP, POOL_GROUP, Document
from tools.harness.kube.objects import Namespace, post

_READ = ("get", "watch", "list")


def rule(group: str, resources: Sequence[str], verbs: Sequence[str] = _READ) -> Document:
    """Return a rule of a role, by default one to read."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


_CONFIGURATION = ("inferenceobjectives", "inferencemodelrewrites")
PICKER_RULES = (
    rule("", ["pods"]),
    rule(POOL_GROUP, ["inferencepools"]),
    rule(LLM_D_GROUP, _CONFIGURATION),
    rule(LEGACY_GROUP, _CONFIGURATION),
)
"""What the llm-d charts grant an endpoint picker in its namespace."""

LEADER_ELECTION_RULES = (
    rule("coordination.k8s.io", ["leases"], ["*"]),
    rule("", ["events"], ["create", "patch"]),
)
"""What they add with more than one replica."""


@dataclass(frozen=True, slots=True)
class Account:
    """A service account; ``ApiServer.service_account_token`` makes its tokens."""

    namespace: str
    name: str
    uid: str

    @property
    def user(self) -> str:
        """Its name for the authorizer."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


async def create_account(
    namespace: Namespace, name: str, rules: Sequence[Document] = PICKER_RULES
) -> Account:
    """Create a service account with a role, and wait until the role counts."""
    path, meta = namespace.path, {"metadata": {"name": name}}
    made = await post(namespace.admin, path("serviceaccounts"), meta)
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}"
    await post(namespace.admin, f"{rbac}/roles", {**meta, "rules": list(rules)})
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace.name}],
    }
    await post(namespace.admin, f"{rbac}/rolebindings", meta | binding)
    account = Account(namespace.name, name, made["metadata"]["uid"])
    async with asyncio.timeout(10):
        # The authorizer learns of roles by a watch, and tells nobody when it has.
        while not await _is_granted(namespace, account, rules):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return account


async def _is_granted(namespace: Namespace, account: Account, rules: Sequence[Document]) -> bool:
    """Return whether the first right of each rule counts."""
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    for each in rules:
        attributes = {
            "namespace": account.namespace,
            "group": each["apiGroups"][0],
            "resource": each["resources"][0],
            "verb": each["verbs"][0],
        }
        review = {"spec": {"user": account.user, "resourceAttributes": attributes}}
        if not (await post(namespace.admin, path, review))["status"]["allowed"]:
            return False
    return True
