"""The comparison of two Deployments, and the format of the list of differences."""

from typing import Any

import pytest

from tools.chart import known_differences
from tools.chart.deployments import ABSENT, Difference, differences, go_deployments
from tools.chart.known_differences import Known, Subject, faults, known


def pod(*containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **fields}}


@pytest.mark.parametrize(
    ("go", "ours", "expected"),
    [
        pytest.param({"a": 1, "b": [1]}, {"b": [1], "a": 1}, [], id="order of fields"),
        pytest.param({"a": 1}, {"a": 2}, [Difference("a", 1, 2)], id="changed"),
        pytest.param({"a": 1}, {}, [Difference("a", 1, ABSENT)], id="removed"),
        pytest.param({}, {"a": {"b": 1}}, [Difference("a", ABSENT, {"b": 1})], id="added"),
        pytest.param(
            {"l": [{"name": "x", "v": 1}, {"name": "y"}]},
            {"l": [{"name": "y"}, {"name": "x", "v": 2}]},
            [Difference("l[x].v", 1, 2)],
            id="items with a name, in any order",
        ),
        pytest.param({"l": [1, 2]}, {"l": [2, 1]}, [Difference("l", [1, 2], [2, 1])], id="list"),
        pytest.param(
            pod({"name": "epp", "args": ["--pool", "p", "--on", "--port=1"]}),
            pod({"name": "epp", "args": ["--port=2", "--pool=p", "--on=true"]}),
            [Difference("spec.containers[epp].args[--port]", "1", "2")],
            id="forms of a flag",
        ),
        pytest.param(
            pod({"name": "epp", "args": ["--t=true", "--t=false"]}),
            pod({"name": "epp", "args": ["--t=false"]}),
            [],
            id="the last of a flag counts",
        ),
        pytest.param(
            pod({"name": "epp"}, {"name": "envoy-proxy"}),
            pod({"name": "envoy"}, initContainers=[{"name": "epp", "restartPolicy": "Always"}]),
            [
                Difference("spec.containers[epp].restartPolicy", ABSENT, "Always"),
                Difference("spec.containers[envoy].name", "envoy-proxy", "envoy"),
            ],
            id="sidecar container",
        ),
    ],
)
def test_differences_are_found(go: Any, ours: Any, expected: list[Difference]) -> None:
    assert differences(go, ours) == expected


def subject(*listed: Known) -> Subject:
    return Subject("a", "b", "c", "d", list(listed))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        pytest.param([Known("a", 1, {"b": 2})], [], id="listed"),
        pytest.param([Known("a", 1, "*")], [], id="any value"),
        pytest.param([Known("a", 1, {"b": "*"}, ["f"])], [], id="any value of a part"),
        pytest.param(
            [Known("a", 1)],
            [
                "not listed: a: go 1, ours {'b': 2}",
                "does not occur: a: go 1, ours absent",
            ],
            id="listed as absent",
        ),
        pytest.param(
            [Known("a", "*", "*", ["g"])],
            ["not listed: a: go 1, ours {'b': 2}"],
            id="listed for another file",
        ),
        pytest.param(
            [Known("a", "*", "*"), Known("z", 1)],
            ["does not occur: z: go 1, ours absent"],
            id="one that no longer occurs",
        ),
    ],
)
def test_the_list_is_held_against_what_is_found(listed: list[Known], expected: list[str]) -> None:
    assert faults([Difference("a", 1, {"b": 2})], "f", [subject(*listed)]) == expected


def test_no_two_entries_are_for_one_path_and_file() -> None:
    for file in go_deployments():
        paths = [
            each.path for subject in known() for each in subject.differences if each.occurs_in(file)
        ]
        assert len(paths) == len(set(paths)), file


def test_a_values_file_that_is_not_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_differences, "go_deployments", dict)
    with pytest.raises(ValueError, match=r"names \['router-custom-plugins',"):
        known()
