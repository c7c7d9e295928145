"""Which pods are endpoints, at which addresses, under which names."""

from typing import Any

import msgspec
import pytest

from epp.data_layer import EndpointSpec
from epp.kubernetes.pods import Pod, endpoints_of

READY = {"type": "Ready", "status": "True"}
ACTIVE = "llm-d.ai/active-ports"
FORMERLY_ACTIVE = "inference.networking.k8s.io/active-ports"


def make_pod(*, metadata: dict[str, Any] | None = None, **status: Any) -> Pod:
    """Return a ready pod, as a list or a watch has it, with some changes; None leaves a field out.

    Args:
        metadata: Changed fields of the metadata.
        status: Changed fields of the status.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _changed(
            {"name": "a", "namespace": "d", "uid": "u1", "labels": {"app": "vllm"}}, metadata or {}
        ),
        "spec": {"containers": [{"name": "server", "image": "vllm"}]},
        "status": _changed(
            {"phase": "Running", "podIP": "10.0.0.1", "conditions": [READY]}, status
        ),
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=Pod)


def _changed(fields: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in (fields | changes).items() if value is not None}


def ranks(pod: Pod, *ports: int) -> list[int]:
    """Return the ranks of a pod's endpoints."""
    return [int(spec.name.rpartition("-")[2]) for spec in endpoints_of(pod, ports)]


def condition(status: str, type_: str = "Ready") -> dict[str, str]:
    return {"type": type_, "status": status, "lastTransitionTime": "2026-11-24T00:00:00Z"}


@pytest.mark.parametrize(
    ("pod", "is_ready"),
    [
        pytest.param(make_pod(), True, id="ready"),
        pytest.param(make_pod(conditions=[condition("False")]), False, id="not ready"),
        pytest.param(make_pod(conditions=[condition("Unknown")]), False, id="unknown"),
        pytest.param(make_pod(conditions=[condition("true")]), False, id="in small letters"),
        pytest.param(make_pod(conditions=[]), False, id="without conditions"),
        pytest.param(make_pod(conditions=None), False, id="without the field conditions"),
        pytest.param(
            make_pod(conditions=[condition("True", "ContainersReady"), condition("False")]),
            False,
            id="its containers alone are ready",
        ),
        pytest.param(
            make_pod(conditions=[condition("False", "DisruptionTarget"), condition("True")]),
            True,
            id="ready is not the first condition",
        ),
        pytest.param(make_pod(phase="Pending"), True, id="the phase does not matter"),
        pytest.param(
            make_pod(containerStatuses=[{"name": "server", "ready": False}]),
            True,
            id="the containers do not matter",
        ),
        pytest.param(
            make_pod(metadata={"deletionTimestamp": "2026-11-24T00:00:00Z"}), False, id="ending"
        ),
        pytest.param(make_pod(podIP=None), False, id="without an address, unlike in the Go EPP"),
        pytest.param(
            make_pod(podIP=None, podIPs=[{"ip": "10.0.0.1"}]), False, id="only podIP counts"
        ),
    ],
)
def test_a_pod_is_an_endpoint_if_it_is_ready(pod: Pod, is_ready: bool) -> None:
    assert pod.is_ready is is_ready
    assert ranks(pod, 8000) == ([0] if is_ready else [])


def test_a_pod_without_status_is_no_endpoint() -> None:
    pod = msgspec.json.decode(b'{"metadata": {"name": "a", "namespace": "d"}}', type=Pod)
    assert list(endpoints_of(pod, [8000])) == []


@pytest.mark.parametrize(
    ("changes", "ports", "specs"),
    [
        pytest.param(
            {"hostIP": "192.168.0.1"},
            [8000],
            [
                EndpointSpec(
                    "d/a-rank-0",
                    "10.0.0.1:8000",
                    {"app": "vllm"},
                    incarnation="u1",
                    node_address="192.168.0.1",
                )
            ],
            id="one port has a rank, too",
        ),
        pytest.param(
            {"podIP": "fd00::1", "podIPs": [{"ip": "fd00::1"}, {"ip": "10.0.0.1"}]},
            [8001, 8000],
            [
                EndpointSpec("d/a-rank-0", "[fd00::1]:8001", {"app": "vllm"}, incarnation="u1"),
                EndpointSpec("d/a-rank-1", "[fd00::1]:8000", {"app": "vllm"}, incarnation="u1"),
            ],
            id="IPv6, and the ports in the order of the pool",
        ),
        pytest.param(
            {"metadata": {"labels": None, "annotations": {"prometheus.io/port": "8000"}}},
            [8000],
            [EndpointSpec("d/a-rank-0", "10.0.0.1:8000", {}, incarnation="u1")],
            id="without labels, and with another annotation",
        ),
        pytest.param({}, [], [], id="without ports"),
    ],
)
def test_a_pod_is_one_endpoint_for_each_port(
    changes: dict[str, Any], ports: list[int], specs: list[EndpointSpec]
) -> None:
    assert list(endpoints_of(make_pod(**changes), ports)) == specs


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({ACTIVE: "8000,8002"}, [0, 2], id="some; the ranks stay"),
        pytest.param({ACTIVE: "8002,8000"}, [0, 2], id="in any order"),
        pytest.param({ACTIVE: " 8000 ,\t8001"}, [0, 1], id="with blanks"),
        pytest.param({ACTIVE: "8001x,+8002"}, [1, 2], id="prefixes of numbers"),
        pytest.param({ACTIVE: "9000,8001"}, [1], id="one is no port of the pool"),
        pytest.param({ACTIVE: "-8000,x8001,,0,8002"}, [2], id="some are no ports"),
        pytest.param({ACTIVE: ""}, [], id="empty"),
        pytest.param({ACTIVE: "none"}, [], id="no number"),
        pytest.param({FORMERLY_ACTIVE: "8001"}, [1], id="the former name"),
        pytest.param(
            {ACTIVE: "8000", FORMERLY_ACTIVE: "8001"}, [0], id="the name hides the former one"
        ),
        pytest.param({ACTIVE: "", FORMERLY_ACTIVE: "8001"}, [], id="even if it is empty"),
        pytest.param({}, [0, 1, 2], id="none"),
    ],
)
def test_an_annotation_says_which_ports_are_active(
    annotations: dict[str, str], expected: list[int]
) -> None:
    pod = make_pod(metadata={"annotations": annotations})
    assert ranks(pod, 8000, 8001, 8002) == expected


def test_pods_that_differ_in_what_does_not_matter_are_equal() -> None:
    """So the reflector keeps the known one, and nothing is reported."""
    pod = make_pod(conditions=[condition("True"), condition("False", "DisruptionTarget")])
    other = make_pod(conditions=[READY], phase="Pending", metadata={"annotations": {"x": "1"}})
    assert pod == other
    assert pod != make_pod(metadata={"labels": {"app": "vllm", "zone": "1"}})


def test_of_a_pod_that_is_not_ready_no_condition_is_kept() -> None:
    unready = make_pod(conditions=[condition("False"), condition("True", "PodScheduled")])
    assert unready.status.conditions == ()


def test_what_pods_have_in_common_is_kept_once() -> None:
    labels = {"app": "vllm", "pod-template-hash": "6d5f9c7b48"}
    one, other = [
        make_pod(metadata={"name": name, "labels": labels, "annotations": {"x": name}})
        for name in ("a", "b")
    ]
    assert one.metadata.labels is other.metadata.labels
    assert one.metadata.namespace is other.metadata.namespace
    assert one.metadata.annotations is other.metadata.annotations
    assert make_pod(metadata={"annotations": {ACTIVE: "8000"}}).metadata.annotations.active_ports
