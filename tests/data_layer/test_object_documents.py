"""Objects files use the format of Kubernetes, and errors name their place."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.data_layer import ObjectFileError
from epp.data_layer.object_documents import read_objects
from epp.data_layer.objects import Objective, PolicyMeta, Rewrite, RewriteRule

OBJECTIVE = """\
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata:
  name: batch
spec:
  priority: -1
"""
REWRITE = """\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: canary}
spec:
  poolRef: {group: inference.networking.k8s.io, kind: InferencePool, name: pool}
  rules:
  - matches: [{model: {type: Exact, value: chat}}, {model: {value: talk}}]
    targets:
    - {modelRewrite: chat-v1, weight: 9}
    - {modelRewrite: chat-v2, weight: 1}
  - targets: [{modelRewrite: fallback}]
"""
FROM_KUBECTL = """\
apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- apiVersion: llm-d.ai/v1alpha2
  kind: InferenceObjective
  metadata:
    annotations: {a: b}
    creationTimestamp: "2024-05-06T07:08:09Z"
    generation: 1
    name: batch
    namespace: default
    uid: 9f1c
  spec: {poolRef: {name: pool}, priority: 2}
  status: {conditions: []}
"""


def read(text: str) -> list[Objective | Rewrite]:
    return read_objects(Path("o.yaml"), text.encode())


def objective(priority: int, line: int, **meta: object) -> Objective:
    made = PolicyMeta("InferenceObjective", "batch", f"o.yaml:{line}", **meta)  # type: ignore[arg-type] # as given
    return Objective(made, priority)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("---\n---\n# only a comment\n", [], id="empty documents"),
        pytest.param(OBJECTIVE, [objective(-1, 1)], id="an objective"),
        pytest.param(OBJECTIVE.replace("priority: -1", "{}"), [objective(0, 1)], id="no priority"),
        pytest.param(
            OBJECTIVE.replace("-1", "null"), [objective(0, 1)], id="a priority that is null"
        ),
        pytest.param(OBJECTIVE[: OBJECTIVE.index("spec")], [objective(0, 1)], id="without a spec"),
        pytest.param(
            '{"apiVersion": "llm-d.ai/v1alpha2", "kind": "InferenceObjective",\n'
            '"metadata": {"name": "batch"}, "spec": {"priority": 4}}',
            [objective(4, 1)],
            id="JSON",
        ),
        pytest.param(
            FROM_KUBECTL,
            [objective(2, 5, pool="pool", created_at=datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC))],
            id="a list as kubectl prints it",
        ),
        pytest.param(
            REWRITE,
            [
                Rewrite(
                    PolicyMeta("InferenceModelRewrite", "canary", "o.yaml:1", "pool"),
                    (
                        RewriteRule(("chat", "talk"), ("chat-v1", "chat-v2"), (9, 1)),
                        RewriteRule((), ("fallback",)),
                    ),
                )
            ],
            id="a rewrite of the older group",
        ),
    ],
)
def test_objects_are_read(text: str, expected: list[Objective | Rewrite]) -> None:
    assert read(text) == expected


def test_documents_of_one_file_keep_their_lines_and_other_kinds_are_skipped() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"
    with capture_logs() as logs:
        found = read(f"# a deployment\n---\n{OBJECTIVE}--- # next\n{service}---\n{REWRITE}")
    assert [one.meta.origin for one in found] == ["o.yaml:3", "o.yaml:14"]
    assert [(log["kind"], log["origin"]) for log in logs] == [("Service", "o.yaml:10")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            OBJECTIVE.replace("-1", "high"),
            "o.yaml:6:13: spec.priority: expected a whole number, got a text",
            id="wrong type",
        ),
        pytest.param(
            OBJECTIVE.replace("-1", str(2**31)),
            "o.yaml:6:13: spec.priority: expected a whole number <= 2147483647",
            id="beyond 32 bits",
        ),
        pytest.param(
            OBJECTIVE.replace("priority", "prioritty"),
            "o.yaml:6:3: spec.prioritty: unknown field `prioritty`; did you mean `priority`?",
            id="typo in a field",
        ),
        pytest.param(
            OBJECTIVE.replace("name: batch", "{}"),
            "o.yaml:4:3: metadata: required field `name` is missing",
            id="no name",
        ),
        pytest.param(
            OBJECTIVE.replace("v1alpha2", "v9"),
            "o.yaml:1:13: apiVersion: is 'llm-d.ai/v9', expected llm-d.ai/v1alpha2 or inference",
            id="unknown version",
        ),
        pytest.param(
            OBJECTIVE + "  priority: 3\n",
            "o.yaml:7:3: spec.priority: duplicate key `priority`",
            id="key given twice",
        ),
        pytest.param("a: [", "o.yaml:", id="broken YAML"),
        pytest.param("- a\n", "o.yaml:1:1: expected an object with apiVersion", id="a list"),
        pytest.param("kind: 3\n", "expected an object with apiVersion", id="kind of another type"),
        pytest.param(
            f"{OBJECTIVE}---\n{OBJECTIVE}",
            "o.yaml:8: InferenceObjective 'batch' is at o.yaml:1 too: rename or remove one",
            id="the same name twice",
        ),
        pytest.param(
            f"{OBJECTIVE}---\n" + REWRITE.replace(", weight: 1", ""),
            "o.yaml:16:5: spec.rules[0].targets: 1 of 2 targets have a weight; give one to all",
            id="some targets weighted",
        ),
        pytest.param(
            REWRITE.replace("weight: 1}", "weight: 0}"),
            "o.yaml:10:39: spec.rules[0].targets[1].weight: expected a whole number >= 1",
            id="weight zero",
        ),
        pytest.param(
            REWRITE.replace("Exact", "Prefix"),
            "spec.rules[0].matches[0].model.type: must be `Exact`, not `Prefix`",
            id="another way to match",
        ),
        pytest.param(
            FROM_KUBECTL.replace("priority: 2", "priority: x"),
            "o.yaml:14:43: items[0].spec.priority: expected a whole number, got a text",
            id="in a list",
        ),
        pytest.param(
            FROM_KUBECTL.replace("2024-05-06T07:08:09Z", "yesterday"),
            "o.yaml:9:24: items[0].metadata.creationTimestamp: invalid RFC3339",
            id="no time",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ObjectFileError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "objects file o.yaml" in str(caught.value)


def test_every_fault_of_an_object_is_reported_in_a_line_of_its_own() -> None:
    text = FROM_KUBECTL.replace("name: batch", "name: 3").replace("priority: 2", "prio: 2")
    with pytest.raises(ObjectFileError) as caught:
        read(text)
    assert str(caught.value).splitlines() == [
        (
            "objects file o.yaml:11:11: items[0].metadata.name: expected a text, got a whole"
            " number; put it in quotes"
        ),
        (
            "objects file o.yaml:14:33: items[0].spec.prio: unknown field `prio`; known: `poolRef`,"
            " `priority`"
        ),
    ]


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(ObjectFileError, match=r"objects file o\.yaml: not UTF-8"):
        read_objects(Path("o.yaml"), b"kind: \xff")


@given(st.data())
def test_any_text_is_read_or_refused(data: st.DataObject) -> None:
    pieces = [*OBJECTIVE.splitlines(True), *REWRITE.splitlines(True), "---\n", "items: [a]\n"]
    piece = st.sampled_from(pieces) | st.text(max_size=12)
    text = "".join(data.draw(st.lists(piece, max_size=20)))
    try:
        found = read_objects(Path("o.yaml"), text.encode("utf-8", "surrogatepass"))
    except ObjectFileError as error:
        assert "objects file o.yaml" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert all(one.meta.name for one in found)


def test_the_time_a_file_takes_grows_with_its_size_alone() -> None:
    # Were each document padded with the lines of all before it, this took minutes.
    one = "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: last}\n"
    (last,) = read_objects(Path("o.yaml"), ("---\n" * 20_000 + one).encode())
    assert last.meta.origin == "o.yaml:20001"
    with pytest.raises(ObjectFileError, match=re.escape("o.yaml:20001:13: apiVersion: is 'v1'")):
        read_objects(
            Path("o.yaml"),
            ("---\n" * 20_000 + one.replace("llm-d.ai/v1alpha2", "v1")).encode(),
        )


def test_a_document_that_begins_beside_its_mark_keeps_its_columns() -> None:
    text = b"---\n--- {kind: InferenceObjective, apiVersion: v1}\n"
    with pytest.raises(ObjectFileError, match=re.escape("o.yaml:2:44: apiVersion")):
        read_objects(Path("o.yaml"), text)
