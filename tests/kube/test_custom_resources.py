"""The harness's custom resources have the defaults and validation of a real cluster."""

from typing import Any

import pytest

from tools.harness.kube.crds import (
    LEGACY_OBJECTIVE,
    LEGACY_POOL,
    LEGACY_REWRITE,
    OBJECTIVE,
    POOL,
    POOL_GROUP,
    REWRITE,
    Document,
    Kind,
)
from tools.harness.kube.errors import RefusedError
from tools.harness.kube.objects import MERGE_PATCH, Namespace

SELECTOR = {"matchLabels": {"app": "vllm"}}
OBJECTIVES = pytest.mark.parametrize("kind", [OBJECTIVE, LEGACY_OBJECTIVE], ids=lambda k: k.group)
REWRITES = pytest.mark.parametrize("kind", [REWRITE, LEGACY_REWRITE], ids=lambda k: k.group)
ACCEPTED = {
    "type": "Accepted",
    "status": "True",
    "reason": "Accepted",
    "message": "",
    "lastTransitionTime": "2026-11-24T12:00:00Z",
}


def pool_spec(*ports: int, **more: Any) -> Document:
    return {"selector": SELECTOR, "targetPorts": [{"number": port} for port in ports], **more}


async def test_a_pool_speaks_http_by_default(namespace: Namespace) -> None:
    made = await namespace.create_pool("a", SELECTOR["matchLabels"], [8000, 8001])
    assert made["spec"] == pool_spec(8000, 8001, appProtocol="http")
    h2c = {"appProtocol": "kubernetes.io/h2c"}
    made = await namespace.create_pool("b", SELECTOR["matchLabels"], [8000], **h2c)
    assert made["spec"] == pool_spec(8000, **h2c)
    assert len((await namespace.list(POOL))["items"]) == 2


async def test_what_a_gateway_reads_of_a_pool_is_kept(namespace: Namespace) -> None:
    picker = {"name": "epp", "port": {"number": 9002}, "failureMode": "FailOpen"}
    made = await namespace.create(POOL, "a", pool_spec(8000, endpointPickerRef=picker))
    assert made["spec"]["endpointPickerRef"] == picker


async def test_a_pool_of_the_former_group_has_one_port(namespace: Namespace) -> None:
    spec = {"selector": {"app": "vllm"}, "targetPortNumber": 8000, "extensionRef": {"name": "epp"}}
    assert (await namespace.create(LEGACY_POOL, "a", spec))["spec"] == spec


@pytest.mark.parametrize(
    ("kind", "spec", "reason"),
    [
        pytest.param(POOL, pool_spec(80000), "less than or equal to 65535", id="port 80000"),
        pytest.param(POOL, pool_spec(0), "greater than or equal to 1", id="port 0"),
        pytest.param(POOL, pool_spec(8000, 8000), "must occur once", id="equal ports"),
        pytest.param(POOL, pool_spec(), "at least 1 items", id="no port"),
        pytest.param(POOL, pool_spec(*range(1, 10)), "at most 8 items", id="nine ports"),
        pytest.param(POOL, pool_spec(1, appProtocol="h3"), "supported values", id="protocol"),
        pytest.param(POOL, {"targetPorts": [{"number": 1}]}, "spec.selector", id="no selector"),
        pytest.param(
            LEGACY_POOL,
            {"selector": {}, "targetPortNumber": 80000},
            "less than or equal to 65535",
            id="port 80000, former group",
        ),
    ],
)
async def test_an_invalid_pool_is_refused(
    namespace: Namespace, kind: Kind, spec: Document, reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason) as raised:
        await namespace.create(kind, "a", spec)
    assert raised.value.status == 422


@OBJECTIVES
async def test_an_objective_refers_to_a_pool_of_the_standard_group(
    namespace: Namespace, kind: Kind
) -> None:
    made = await namespace.create_objective("a", "pool", -1, kind=kind)
    reference = {"group": POOL_GROUP, "kind": "InferencePool", "name": "pool"}
    assert made["spec"] == {"poolRef": reference, "priority": -1}
    made = await namespace.create_objective("b", "pool", kind=kind)
    assert made["spec"] == {"poolRef": reference}
    with pytest.raises(RefusedError, match="poolRef"):
        await namespace.create(kind, "c", {"priority": 1})


@REWRITES
async def test_a_rewrite_matches_exactly_by_default(namespace: Namespace, kind: Kind) -> None:
    targets = [{"modelRewrite": "chat-v2", "weight": 9}]
    rule = {"matches": [{"model": {"value": "chat"}}], "targets": targets}
    made = await namespace.create_rewrite("a", "pool", rule, {}, kind=kind)
    exact = {"matches": [{"model": {"type": "Exact", "value": "chat"}}], "targets": targets}
    assert made["spec"]["rules"] == [exact, {}]
    assert made["spec"]["poolRef"]["group"] == POOL_GROUP
    made = await namespace.create(kind, "b", {"rules": []})
    assert made["spec"] == {"rules": []}
    with pytest.raises(RefusedError, match="greater than or equal to 1"):
        await namespace.create_rewrite("c", "pool", {"targets": [targets[0] | {"weight": 0}]})


@pytest.mark.parametrize(
    "kind", [OBJECTIVE, REWRITE, LEGACY_OBJECTIVE, LEGACY_REWRITE], ids=lambda kind: kind.plural
)
async def test_conditions_are_written_through_the_status_subresource(
    namespace: Namespace, kind: Kind
) -> None:
    if kind in {OBJECTIVE, LEGACY_OBJECTIVE}:
        await namespace.create_objective("a", "pool", kind=kind)
    else:
        await namespace.create_rewrite("a", "pool", kind=kind)
    path = namespace.path(kind, "a")
    patch = {"spec": {"poolRef": {"name": "other"}}, "status": {"conditions": [ACCEPTED]}}
    admin = namespace.admin
    written = (await admin.patch(f"{path}/status", json=patch, headers=MERGE_PATCH)).json()
    assert written["status"] == {"conditions": [ACCEPTED]}
    assert written["spec"]["poolRef"]["name"] == "pool"
    assert written["metadata"]["generation"] == 1
    invalid = {"status": {"conditions": [ACCEPTED | {"status": "Perhaps"}]}}
    refused = await admin.patch(f"{path}/status", json=invalid, headers=MERGE_PATCH)
    assert refused.status_code == 422
