"""Custom resource definitions, as far as the endpoint picker depends on them.

They are written from the facts in the reference, not copied from the projects that publish them.
Fields that an endpoint picker neither reads nor writes (references to itself, the status of a pool)
are accepted unchecked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]

POOL_GROUP = "inference.networking.k8s.io"
LEGACY_GROUP = "inference.networking.x-k8s.io"
LLM_D_GROUP = "llm-d.ai"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of custom resource in one group and version."""

    group: str
    version: str
    name: str

    @property
    def plural(self) -> str:
        """Name of the resource in URLs and in roles."""
        return self.name.lower() + "s"

    @property
    def api_version(self) -> str:
        """Value of ``apiVersion`` in objects."""
        return f"{self.group}/{self.version}"


POOL = Kind(POOL_GROUP, "v1", "InferencePool")
LEGACY_POOL = Kind(LEGACY_GROUP, "v1alpha2", "InferencePool")
OBJECTIVE = Kind(LLM_D_GROUP, "v1alpha2", "InferenceObjective")
LEGACY_OBJECTIVE = Kind(LEGACY_GROUP, "v1alpha2", "InferenceObjective")
REWRITE = Kind(LLM_D_GROUP, "v1alpha2", "InferenceModelRewrite")
LEGACY_REWRITE = Kind(LEGACY_GROUP, "v1alpha2", "InferenceModelRewrite")


def definitions() -> list[Document]:
    """Return the definitions of all kinds above."""
    return [
        _definition(POOL, _POOL, _UNCHECKED),
        _definition(LEGACY_POOL, _LEGACY_POOL, _UNCHECKED),
        *(_definition(kind, _OBJECTIVE, _STATUS) for kind in (OBJECTIVE, LEGACY_OBJECTIVE)),
        *(_definition(kind, _REWRITE, _STATUS) for kind in (REWRITE, LEGACY_REWRITE)),
    ]


def _definition(kind: Kind, spec: Document, status: Document) -> Document:
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": _object(spec=spec, status=status)},
    }
    metadata: Document = {"name": f"{kind.plural}.{kind.group}"}
    if kind.group.endswith(".k8s.io"):
        # Without it, the server refuses a definition in a group of the Kubernetes project.
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for tests only"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.name, "plural": kind.plural},
            "versions": [version],
        },
    }


def _object(required: Sequence[str] = (), **properties: Document) -> Document:
    schema: Document = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def _array(items: Document, **limits: Any) -> Document:
    return {"type": "array", "items": items, **limits}


def _string(**limits: Any) -> Document:
    return {"type": "string", **limits}


def _integer(minimum: int, maximum: int) -> Document:
    return {"type": "integer", "format": "int32", "minimum": minimum, "maximum": maximum}


_UNCHECKED: Document = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_NAME = _string(minLength=1, maxLength=253)
_PORT = _integer(1, 65535)
_LABELS: Document = {"type": "object", "additionalProperties": _string(maxLength=63)}

_POOL = _object(
    ("selector", "targetPorts"),
    selector=_object(("matchLabels",), matchLabels={**_LABELS, "minProperties": 1}),
    targetPorts={
        **_array(_object(("number",), number=_PORT), minItems=1, maxItems=8),
        "x-kubernetes-validations": [
            {
                "rule": "self.all(a, self.exists_one(b, a.number == b.number))",
                "message": "each target port must occur once",
            }
        ],
    },
    appProtocol=_string(enum=["http", "kubernetes.io/h2c"], default="http"),
    endpointPickerRef=_UNCHECKED,
)
_LEGACY_POOL = _object(
    ("selector", "targetPortNumber"),
    selector=_LABELS,
    targetPortNumber=_PORT,
    extensionRef=_UNCHECKED,
)

_POOL_REF = _object(
    ("name",),
    group=_string(maxLength=253, default=POOL_GROUP),
    kind=_string(minLength=1, maxLength=63, default="InferencePool"),
    name=_NAME,
)
_OBJECTIVE = _object(("poolRef",), poolRef=_POOL_REF, priority=_integer(-(2**31), 2**31 - 1))

_MODEL = _object(
    ("value",), type=_string(enum=["Exact"], default="Exact"), value=_string(minLength=1)
)
_TARGET = _object(("modelRewrite",), modelRewrite=_string(), weight=_integer(1, 1_000_000))
_RULE = _object(
    matches=_array(_object(("model",), model=_MODEL)),
    targets=_array(_TARGET, minItems=1),  # an absent list is accepted
)
_REWRITE = _object(("rules",), poolRef=_POOL_REF, rules=_array(_RULE))

_CONDITION = _object(
    ("type", "status", "reason", "message", "lastTransitionTime"),
    type=_string(maxLength=316),
    status=_string(enum=["True", "False", "Unknown"]),
    reason=_string(minLength=1, maxLength=1024, pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
    message=_string(maxLength=32768),
    lastTransitionTime=_string(format="date-time"),
    observedGeneration={"type": "integer", "format": "int64", "minimum": 0},
)
_STATUS = _object(
    conditions={
        **_array(_CONDITION, maxItems=8),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }
)
