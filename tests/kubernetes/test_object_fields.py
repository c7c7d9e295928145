"""Only the fields in use are kept of an object."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.kubernetes.object_fields import kept_object, plain_object

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "a",
        "namespace": "d",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"app": "vllm"},
        "managedFields": [{}],
    },
    "spec": {"nodeName": "n", "containers": [{"name": "c"}], "affinity": {"class": 1}},
    "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready"}]},
}
IDENTITY = {"name": "a", "namespace": "d", "uid": "u", "resourceVersion": "7"}


def kept(fields: list[str], document: Any = POD) -> Any:
    decoded = msgspec.json.decode(json.dumps(document), type=kept_object(fields))
    return plain_object(decoded)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param([], {"metadata": IDENTITY}, id="no field"),
        pytest.param(
            ["spec.nodeName", "status.conditions"],
            {
                "metadata": IDENTITY,
                "spec": {"nodeName": "n"},
                "status": {"conditions": [{"type": "Ready"}]},
            },
            id="fields of two parts",
        ),
        pytest.param(
            ["metadata.labels", "metadata.uid", "metadata.deletionTimestamp"],
            {"metadata": IDENTITY | {"labels": {"app": "vllm"}}},
            id="metadata, as far as the object has it",
        ),
        pytest.param(
            ["metadata", "metadata.labels"],
            {"metadata": IDENTITY | {"labels": {"app": "vllm"}}},
            id="the whole metadata, without who wrote it",
        ),
        pytest.param(
            ["spec.affinity.class", "spec"],
            {"metadata": IDENTITY, "spec": POD["spec"]},
            id="a part and all of it",
        ),
        pytest.param(
            ["spec.affinity.class"],
            {"metadata": IDENTITY, "spec": {"affinity": {"class": 1}}},
            id="a keyword of Python",
        ),
        pytest.param(["data"], {"metadata": IDENTITY}, id="a field that it lacks"),
    ],
)
def test_the_fields_in_use_are_kept(fields: list[str], want: Any) -> None:
    assert kept(fields) == want


def test_null_is_like_a_field_that_is_not_there() -> None:
    document = {"metadata": {"name": "a"}, "spec": None, "status": {"x": None}}
    assert kept(["spec.x", "status.x"], document) == {"metadata": {"name": "a"}, "status": {}}


def test_equal_objects_are_equal_whatever_is_dropped() -> None:
    type_ = kept_object(["spec.nodeName"])
    other = POD | {"spec": {"nodeName": "n"}, "status": {}}
    first, second = (msgspec.json.decode(json.dumps(each), type=type_) for each in (POD, other))
    assert first == second


_NAMES = ("a", "class", "field_0")
_PATHS = st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3).map(".".join)


@given(st.lists(_PATHS, max_size=5))
def test_any_fields_are_those_of_the_object(fields: list[str]) -> None:
    leaves = dict.fromkeys(_NAMES, 1)
    document: Any = {each: dict.fromkeys(_NAMES, leaves) for each in _NAMES}
    want: dict[str, Any] = {}
    for field in sorted(fields, reverse=True):  # the whole comes after its parts
        *parents, last = field.split(".")
        source, target = document, want
        for each in parents:
            source, target = source[each], target.setdefault(each, {})
        target[last] = source[last]
    metadata = {"metadata": {"name": "x"}}
    assert kept(fields, document | metadata) == want | metadata
