"""Service accounts with their own rights and tokens."""

import asyncio
import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from tools.harness.kube.crds import LEGACY_GROUP, LLM_D_GROUP, POOL_GROUP, Document
from tools.harness.kube.objects import Namespace, post

ISSUER: Final = "https://kubernetes.default.svc"

_READ = ("get", "watch", "list")


def rule(group: str, resources: Sequence[str], verbs: Sequence[str] = _READ) -> Document:
    """Return a rule of a role, by default for reading."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


_CONFIGURATION = ("inferenceobjectives", "inferencemodelrewrites")
PICKER_RULES = (
    rule("", ["pods"]),
    rule(POOL_GROUP, ["inferencepools"]),
    rule(LLM_D_GROUP, _CONFIGURATION),
    rule(LEGACY_GROUP, _CONFIGURATION),
)
"""Rules that the llm-d charts grant an endpoint picker in its namespace."""

STATUS_RULES = tuple(
    rule(group, [f"{plural}/status" for plural in _CONFIGURATION], ["patch"])
    for group in (LLM_D_GROUP, LEGACY_GROUP)
)
"""Rules for writing the status of objectives and rewrites; the charts do not grant them."""

LEADER_ELECTION_RULES = (
    rule("coordination.k8s.io", ["leases"], ["*"]),
    rule("", ["events"], ["create", "patch"]),
)
"""Rules that the charts add with more than one replica."""

METRICS_AUTH_RULES = (
    rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
    rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
)
"""Rules that the charts add, as a ClusterRole, with monitoring by Prometheus."""


def path_rule(*paths: str) -> Document:
    """Return a rule of a ClusterRole for reading paths that are not resources."""
    return {"nonResourceURLs": list(paths), "verbs": ["get"]}


@dataclass(frozen=True, slots=True)
class Account:
    """A service account."""

    namespace: str
    name: str
    uid: str

    @property
    def user(self) -> str:
        """The account's user name for the authorizer."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


class TokenIssuer:
    """Issues tokens as the TokenRequest API does, whose minimum lifetime is 10 minutes."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    @property
    def private_key(self) -> bytes:
        """The signing key as PEM, with which the API server verifies the tokens."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )

    def issue(self, account: Account, lifetime_seconds: int = 3600) -> str:
        """Return a token of an account.

        The API server accepts a token for a minute longer, in case clocks differ, and for another
        10 s if it has just seen it. A negative lifetime can offset that minute.
        """
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": [ISSUER],
            "sub": account.user,
            "iat": now,
            "nbf": now,
            "exp": now + lifetime_seconds,
            "kubernetes.io": {
                "namespace": account.namespace,
                "serviceaccount": {"name": account.name, "uid": account.uid},
            },
        }
        signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "ES256"}, claims))
        # RFC 7518 §3.4: the two numbers as 32 bytes each, not as ASN.1.
        numbers = decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64(b''.join(number.to_bytes(32, 'big') for number in numbers))}"


async def create_account(
    namespace: Namespace, name: str, rules: Sequence[Document] = PICKER_RULES
) -> Account:
    """Create a service account with a role, and wait until the role takes effect."""
    path, meta = namespace.path, {"metadata": {"name": name}}
    made = await post(namespace.admin, path("serviceaccounts"), meta)
    account = Account(namespace.name, name, made["metadata"]["uid"])
    await _grant(namespace, account, rules, kind="Role", name=name)
    return account


async def grant_cluster_role(
    namespace: Namespace, account: Account, rules: Sequence[Document]
) -> None:
    """Grant an account rights in the whole cluster, and wait until they take effect."""
    name = f"{account.namespace}-{account.name}"
    await _grant(namespace, account, rules, kind="ClusterRole", name=name)


async def _grant(
    namespace: Namespace, account: Account, rules: Sequence[Document], *, kind: str, name: str
) -> None:
    meta, plural = {"metadata": {"name": name}}, f"{kind.lower()}s"
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    if kind == "Role":
        rbac += f"/namespaces/{namespace.name}"
    await post(namespace.admin, f"{rbac}/{plural}", {**meta, "rules": list(rules)})
    subject = {
        "kind": "ServiceAccount",
        "name": account.name,
        "namespace": account.namespace,
    }
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [subject],
    }
    await post(namespace.admin, f"{rbac}/{kind.lower()}bindings", meta | binding)
    await until_granted(namespace, account, rules, account.namespace if kind == "Role" else "")


async def until_granted(
    namespace: Namespace, account: Account, rules: Sequence[Document], scope: str
) -> None:
    """Wait until the first right of each rule takes effect in namespace ``scope``, "" for all."""
    async with asyncio.timeout(10):
        # The authorizer learns of roles by a watch, without a notification.
        while not await _is_granted(namespace, account, rules, scope):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _is_granted(
    namespace: Namespace, account: Account, rules: Sequence[Document], scope: str
) -> bool:
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    for each in rules:
        verb = each["verbs"][0]
        if "nonResourceURLs" in each:
            attributes = {"path": each["nonResourceURLs"][0], "verb": verb}
            spec = {"user": account.user, "nonResourceAttributes": attributes}
        else:
            attributes = {
                "namespace": scope,
                "group": each["apiGroups"][0],
                "resource": each["resources"][0],
                "verb": verb,
            }
            spec = {"user": account.user, "resourceAttributes": attributes}
        if not (await post(namespace.admin, path, {"spec": spec}))["status"]["allowed"]:
            return False
    return True


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
