"""The API server of the tests, and the behaviour that an endpoint picker expects of any."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tools.harness.kube.crds import Document
from tools.harness.kube.errors import RefusedError
from tools.harness.kube.objects import Namespace, Pod, checked, pod_status
from tools.harness.kube.server import ApiServer
from tools.kube.build import KUBERNETES

WATCH_LIST = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


@asynccontextmanager
async def watching(namespace: Namespace, **query: str) -> AsyncIterator[AsyncIterator[Document]]:
    """Watch the pods; give their events."""
    async with namespace.admin.stream(
        "GET", namespace.path("pods"), params={"watch": "true", **query}
    ) as response:
        response.raise_for_status()
        yield (json.loads(line) async for line in response.aiter_lines())


def names(pods: Document) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods["items"]}


def conditions(pod: Document) -> dict[str, str]:
    return {each["type"]: each["status"] for each in pod["status"]["conditions"]}


async def test_the_server_tells_its_version(admin: httpx.AsyncClient) -> None:
    version = checked(await admin.get("/version"))
    minor = KUBERNETES.split(".")[1]
    assert (version["major"], version["minor"]) == ("1", minor)


async def test_a_request_without_a_valid_token_is_refused(api_server: ApiServer) -> None:
    async with api_server.client("another") as stranger:
        assert (await stranger.get("/version")).status_code == 401


async def test_a_kubeconfig_leads_to_the_server(
    api_server: ApiServer, namespace: Namespace, tmp_path: Path
) -> None:
    api_server.write_kubeconfig(tmp_path / "config", namespace.name)
    document = yaml.safe_load((tmp_path / "config").read_text())
    (cluster,), (user,), (context,) = (
        [each[key] for each in document[f"{key}s"]] for key in ("cluster", "user", "context")
    )
    tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
    bearer = {"authorization": f"Bearer {user['token']}"}
    async with httpx.AsyncClient(base_url=cluster["server"], verify=tls, headers=bearer) as client:
        path = f"/api/v1/namespaces/{context['namespace']}/pods"
        assert checked(await client.get(path))["items"] == []


async def test_a_kubeconfig_can_name_a_file_with_a_token(
    api_server: ApiServer, tmp_path: Path
) -> None:
    api_server.write_kubeconfig(tmp_path / "config", tokenFile="/tokens/epp")
    document = yaml.safe_load((tmp_path / "config").read_text())
    assert [each["user"] for each in document["users"]] == [{"tokenFile": "/tokens/epp"}]


async def test_a_pod_is_listed_with_the_status_it_was_given(namespace: Namespace) -> None:
    await namespace.create_pods(
        Pod(name="a", labels={"app": "vllm"}, ip="10.1.2.3"),
        Pod(name="b", labels={"app": "vllm"}, ip="fd00::1", ready=False),
        Pod(name="c", labels={"app": "other"}, ready=False),
    )
    query = {"labelSelector": "app=vllm"}
    path = namespace.path("pods")
    found = checked(await namespace.admin.get(path, params=query))["items"]
    a, b = sorted(found, key=lambda pod: str(pod["metadata"]["name"]))
    assert (a["status"]["podIP"], conditions(a)) == ("10.1.2.3", {"Ready": "True"})
    assert (b["status"]["podIP"], conditions(b)) == ("fd00::1", {"Ready": "False"})
    assert names(await namespace.list("pods")) == {"a", "b", "c"}


async def test_200_pods_are_created_changed_and_deleted(namespace: Namespace) -> None:
    pods = [Pod(name=f"pod-{n}", ip=f"10.1.0.{n}", labels={"n": str(n)}) for n in range(200)]
    await namespace.create_pods(*pods)
    found = (await namespace.list("pods"))["items"]
    assert {pod["status"]["podIP"] for pod in found} == {pod.ip for pod in pods}
    assert all(conditions(pod) == {"Ready": "True"} for pod in found)
    await namespace.patch_pods({pod.name: pod_status(ip="10.2.0.1", ready=False) for pod in pods})
    await namespace.patch_pods({pod.name: {"metadata": {"labels": {"n": None}}} for pod in pods})
    for pod in (await namespace.list("pods"))["items"]:
        assert (pod["status"]["podIP"], conditions(pod)) == ("10.2.0.1", {"Ready": "False"})
        assert "labels" not in pod["metadata"]
    await namespace.delete_pods(*(pod.name for pod in pods[1:]))
    assert names(await namespace.list("pods")) == {"pod-0"}


async def test_a_failed_change_of_many_pods_is_reported(namespace: Namespace) -> None:
    await namespace.create_pods(Pod(name="a"))
    with pytest.RaisesGroup(pytest.RaisesExc(RefusedError, match='404: pods "missing" not found')):
        await namespace.delete_pods("a", "missing")


async def test_only_a_pod_on_a_node_terminates_gracefully(namespace: Namespace) -> None:
    await namespace.create_pods(Pod(name="bound", node="somewhere"), Pod(name="pending"))
    await namespace.delete_pods("bound", "pending", grace_seconds=30)
    (pod,) = (await namespace.list("pods"))["items"]
    assert pod["metadata"]["name"] == "bound"
    assert pod["metadata"]["deletionTimestamp"]
    await namespace.delete_pods("bound")
    assert names(await namespace.list("pods")) == set()


async def test_a_watch_begins_with_the_present_objects(namespace: Namespace) -> None:
    await namespace.create_pods(Pod(name="a"), Pod(name="b"))
    async with watching(namespace, **WATCH_LIST) as events:
        initial = [await anext(events) for _ in range(3)]
        *added, bookmark = initial
        assert {each["object"]["metadata"]["name"] for each in added} == {"a", "b"}
        assert [each["type"] for each in initial] == ["ADDED", "ADDED", "BOOKMARK"]
        annotations = bookmark["object"]["metadata"]["annotations"]
        assert annotations == {"k8s.io/initial-events-end": "true"}
        await namespace.delete_pods("a")
        marked, deleted = [await anext(events) for _ in range(2)]
    # A pod is marked before it is deleted, even without a grace period.
    assert (marked["type"], deleted["type"]) == ("MODIFIED", "DELETED")
    assert marked["object"]["metadata"]["deletionTimestamp"]
    assert deleted["object"]["metadata"]["name"] == "a"


async def test_a_relabelled_pod_is_deleted_for_a_watch_by_label(namespace: Namespace) -> None:
    await namespace.create_pods(Pod(name="a", labels={"app": "vllm"}))
    async with watching(namespace, labelSelector="app=vllm", **WATCH_LIST) as events:
        assert [(await anext(events))["type"] for _ in range(2)] == ["ADDED", "BOOKMARK"]
        await namespace.patch_pods({"a": {"metadata": {"labels": {"app": "other"}}}})
        assert (await anext(events))["type"] == "DELETED"


async def test_a_watch_goes_on_from_a_resource_version(namespace: Namespace) -> None:
    version = (await namespace.list("pods"))["metadata"]["resourceVersion"]
    await namespace.create_pods(Pod(name="a", ready=False))
    async with watching(namespace, resourceVersion=version) as events:
        event = await anext(events)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")


async def test_an_old_resource_version_is_gone_after_compaction(
    api_server: ApiServer, namespace: Namespace
) -> None:
    version = (await namespace.list("pods"))["metadata"]["resourceVersion"]
    await namespace.create_pods(Pod(name="a"))
    api_server.kill()
    api_server.compact()
    api_server.start()
    async with watching(namespace, resourceVersion=version) as events:
        event = await anext(events)
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    query = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    listed = await namespace.admin.get(namespace.path("pods"), params=query)
    assert (listed.status_code, listed.json()["reason"]) == (410, "Expired")


async def test_a_killed_server_returns_with_its_objects(
    api_server: ApiServer, namespace: Namespace
) -> None:
    await namespace.create_pods(Pod(name="a", ip="10.1.2.3"))
    before = (await namespace.list("pods"))["items"]
    api_server.kill()
    with pytest.raises(httpx.ConnectError):
        await namespace.list("pods")
    api_server.start()
    assert (await namespace.list("pods"))["items"] == before


async def test_a_stopped_server_ends_its_watches(
    api_server: ApiServer, namespace: Namespace
) -> None:
    await namespace.create_pods(Pod(name="a"))
    async with watching(namespace, **WATCH_LIST) as events:
        assert [(await anext(events))["type"] for _ in range(2)] == ["ADDED", "BOOKMARK"]
        await asyncio.to_thread(api_server.stop)
        assert [event async for event in events] == []
    api_server.start()
    assert names(await namespace.list("pods")) == {"a"}


async def test_a_suspended_server_is_silent_until_it_is_started(
    api_server: ApiServer, namespace: Namespace
) -> None:
    path = namespace.path("pods")
    api_server.suspend()
    with pytest.raises(httpx.ReadTimeout):
        await namespace.admin.get(path, timeout=0.5)
    api_server.start()
    assert (await namespace.admin.get(path)).status_code == 200


async def test_a_lease_changes_by_compare_and_swap(namespace: Namespace) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace.name}/leases"
    lease: Document = {"metadata": {"name": "epp"}, "spec": {"holderIdentity": "a"}}
    made = checked(await namespace.admin.post(path, json=lease))
    ours = made | {"spec": {"holderIdentity": "b"}}
    checked(await namespace.admin.put(f"{path}/epp", json=ours))
    theirs = made | {"spec": {"holderIdentity": "c"}}
    late = await namespace.admin.put(f"{path}/epp", json=theirs)
    assert (late.status_code, late.json()["reason"]) == (409, "Conflict")
    now = checked(await namespace.admin.get(f"{path}/epp"))
    assert now["spec"]["holderIdentity"] == "b"
