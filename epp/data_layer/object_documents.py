"""Parse objects files into objectives and rewrites.

A file contains Kubernetes objects as YAML documents or one JSON document; ``kind: List`` is
supported. Other kinds are skipped with a warning, so that a file may hold a whole deployment::

    apiVersion: llm-d.ai/v1alpha2
    kind: InferenceObjective
    metadata: {name: batch}
    spec: {priority: -1}
    ---
    apiVersion: llm-d.ai/v1alpha2
    kind: InferenceModelRewrite
    metadata: {name: canary}
    spec:
      rules:
      - matches: [{model: {type: Exact, value: chat}}]
        targets: [{modelRewrite: chat-v1, weight: 9}, {modelRewrite: chat-v2, weight: 1}]
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import structlog

from epp.config.document import Document, parse
from epp.config.errors import ConfigProblem
from epp.config.structs import read
from epp.data_layer.errors import ObjectFileError
from epp.data_layer.objects import Objective, PolicyMeta, Rewrite, RewriteRule

API_VERSIONS: Final = ("llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2")

_log = structlog.get_logger(__name__)

T = TypeVar("T")

# YAML 1.2 §9.1.2: such a line starts a document, even inside a block scalar.
_DOCUMENT_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Rejects unknown fields; keys are in camel case."""


class _Metadata(msgspec.Struct, rename="camel"):
    """Accepts unknown fields: the API server adds some."""

    name: _Text
    creation_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


class _PoolRef(_Strict):
    name: _Text
    group: str = ""
    kind: str = "InferencePool"


class _ObjectiveSpec(_Strict):
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None = None
    pool_ref: _PoolRef | None = None


class _Model(_Strict):
    value: _Text
    type: Literal["Exact"] = "Exact"


class _Match(_Strict):
    model: _Model


class _Target(_Strict):
    model_rewrite: _Text
    weight: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] | None = None


class _Rule(_Strict):
    targets: list[_Target] = []
    """The CRD allows an empty list; such a rule rewrites nothing."""
    matches: list[_Match] = []


class _RewriteSpec(_Strict):
    rules: Annotated[list[_Rule], msgspec.Meta(min_length=1)]
    pool_ref: _PoolRef | None = None


class _Object(_Strict, kw_only=True):
    api_version: str
    kind: str
    metadata: _Metadata
    status: Any = None


class _ObjectiveObject(_Object, kw_only=True):
    spec: _ObjectiveSpec = msgspec.field(default_factory=_ObjectiveSpec)


class _RewriteObject(_Object, kw_only=True):
    spec: _RewriteSpec


def read_objects(path: Path, content: bytes) -> list[Objective | Rewrite]:
    """Return the objectives and rewrites in ``content``, in its order.

    Raises:
        ObjectFileError: It is not valid YAML or JSON, a field is missing, unknown, invalid or
            duplicate, or two objects have the same kind and name.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ObjectFileError(f"objects file {path}: not UTF-8: {error}") from None
    found: list[Objective | Rewrite] = []
    origins: dict[tuple[str, str], str] = {}
    for document, lines_before in _documents(text):
        whole = _Place(path, document, lines_before)
        for prefix, value in _members(whole, document):
            one = _object(whole.at(prefix), value)
            if one is None:
                continue
            key = (one.meta.kind, one.meta.name)
            if key in origins:
                raise ObjectFileError(
                    f"objects file {one.meta.origin}: {key[0]} {key[1]!r} is at {origins[key]} too:"
                    " rename or remove one of them"
                )
            origins[key] = one.meta.origin
            found.append(one)
    return found


class _Place:
    """Position of an object in a file."""

    def __init__(self, path: Path, document: Document, lines_before: int, prefix: str = "") -> None:
        self._path = path
        self._document = document
        self._lines_before = lines_before
        self._prefix = prefix

    def at(self, prefix: str) -> "_Place":
        return _Place(self._path, self._document, self._lines_before, prefix)

    def origin(self) -> str:
        line = self._document.problem(self._prefix, "").line
        return f"{self._path}:{self._lines_before + line}"

    def error(self, field: str, message: str) -> ObjectFileError:
        return self.error_of(self._problem(field, message))

    def error_of(self, *problems: ConfigProblem) -> ObjectFileError:
        before = self._lines_before
        moved = [replace(one, line=before + one.line) if one.line else one for one in problems]
        texts = (f"objects file {one.text(str(self._path))}" for one in moved)
        return ObjectFileError("\n".join(texts))

    def read(self, value: object, kind: type[T]) -> T:
        reading = read(value, kind)
        if reading.value is None:
            raise self.error_of(
                *(
                    self._problem(fault.path, fault.message, on_key=fault.on_key)
                    for fault in reading.faults
                )
            )
        return reading.value

    def _problem(self, field: str, message: str, *, on_key: bool = False) -> ConfigProblem:
        path = f"{self._prefix}.{field}".strip(".")
        return self._document.problem(path, message, on_key=on_key)


def _documents(text: str) -> Iterator[tuple[Document, int]]:
    """Yield the documents of a stream, each with the number of lines before it."""
    start = lines = 0
    for match in (*_DOCUMENT_START.finditer(text), None):
        end = match.start() if match else len(text)
        indent = "   " if start else ""  # text after ``---`` keeps its column
        yield parse(indent + text[start:end]), lines
        lines += text.count("\n", start, end)
        start = match.end() if match else end


def _members(place: _Place, document: Document) -> Iterator[tuple[str, object]]:
    """Yield each object of a document, or of its ``kind: List``, with its path."""
    if document.problems:
        raise place.error_of(*document.problems)
    value = document.root.value
    if isinstance(value, dict) and value.get("kind") == "List" and "items" in value:
        items = value["items"] if isinstance(value["items"], list) else [value["items"]]
        yield from ((f"items[{index}]", item) for index, item in enumerate(items))
    elif value is not None:
        yield "", value


def _object(place: _Place, value: object) -> Objective | Rewrite | None:
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        raise place.error("", "expected an object with apiVersion, kind, metadata and spec")
    kind = value["kind"]
    if kind not in {"InferenceObjective", "InferenceModelRewrite"}:
        _log.warning("object of another kind skipped", kind=kind, origin=place.origin())
        return None
    if value.get("apiVersion") not in API_VERSIONS:
        known = " or ".join(API_VERSIONS)
        raise place.error("apiVersion", f"is {value.get('apiVersion')!r}, expected {known}")
    return _objective(place, value) if kind == "InferenceObjective" else _rewrite(place, value)


def _objective(place: _Place, value: Mapping[str, Any]) -> Objective:
    one = place.read(value, _ObjectiveObject)
    return Objective(_meta(place, one, one.spec.pool_ref), one.spec.priority or 0)


def _rewrite(place: _Place, value: Mapping[str, Any]) -> Rewrite:
    one = place.read(value, _RewriteObject)
    rules = []
    for index, rule in enumerate(one.spec.rules):
        weights = tuple(target.weight for target in rule.targets if target.weight is not None)
        if weights and len(weights) < len(rule.targets):
            raise place.error(
                f"spec.rules[{index}].targets",
                f"{len(weights)} of {len(rule.targets)} targets have a weight; give one to all of"
                " them, or to none for equal shares",
            )
        rules.append(
            RewriteRule(
                tuple(match.model.value for match in rule.matches),
                tuple(target.model_rewrite for target in rule.targets),
                weights,
            )
        )
    return Rewrite(_meta(place, one, one.spec.pool_ref), tuple(rules))


def _meta(place: _Place, one: _Object, pool: _PoolRef | None) -> PolicyMeta:
    return PolicyMeta(
        kind=one.kind,
        name=one.metadata.name,
        origin=place.origin(),
        pool=pool.name if pool else "",
        created_at=one.metadata.creation_timestamp,
    )
