"""Objects of a real API server reach the plugins that subscribe to them."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from kube.pickers import LABELS, cluster_picker, gateway, pod_of, pod_servers, pool
from log_watch import Logs

from epp.config import load_text
from epp.kubernetes.source import PoolsSource
from epp.scheduling import Endpoint
from epp.several_pools import SeveralPools
from epp_plugins.screeners.disaggregatedset_rollout import DisaggregatedSetRolloutScreener
from epp_plugins.state_keys import TOPOLOGY, Topology
from tools.harness.gateway import Picker, until
from tools.harness.kube.access import PICKER_RULES, create_account, rule
from tools.harness.kube.crds import OBJECTIVE
from tools.harness.kube.objects import MERGE_PATCH, Namespace, Pod, pod_status
from tools.harness.kube.server import ApiServer

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
REVISION, ROLE = "disaggregatedset.x-k8s.io/revision", "disaggregatedset.x-k8s.io/role"

DIARY = """
from typing import ClassVar

import msgspec

from epp.data_layer.plugins import ObjectEvent, ObjectKind, ObjectListener


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fields: tuple[str, ...] = ("spec.priority",)


class Diary(ObjectListener):
    type: ClassVar[str] = "diary"
    object_kind = ObjectKind("llm-d.ai", "v1alpha2", "InferenceObjective")

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self.object_fields = params.fields
        self.heard: list[tuple[str, str, object]] = []

    def object_changed(self, event: ObjectEvent) -> None:
        self.heard.append((event.change.value, event.name, event.object.get("spec")))
"""
OBJECTIVES = """
plugins:
- {type: queue-scorer}
- {type: "file:diary.py:Diary", name: diary}
- type: k8s-notification-source
  parameters: {group: llm-d.ai, version: v1alpha2, kind: InferenceObjective}
dataLayer:
  sources:
  - {pluginRef: k8s-notification-source, extractors: [{pluginRef: diary}]}
"""
WATCH_OF_OBJECTIVES = "plugins: InferenceObjective (llm-d.ai/v1alpha2)"
NOTHING = "plugins: [{type: queue-scorer}]\n"

Serve = Callable[..., AbstractAsyncContextManager[Picker]]


@pytest.fixture
def serve(
    api_server: ApiServer, namespace: Namespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Serve:
    """Return what runs a picker of the namespace's pool with a configuration."""
    (tmp_path / "diary.py").write_text(DIARY)

    def serve(config: str, **settings: Any) -> AbstractAsyncContextManager[Picker]:
        file = tmp_path / "config.yaml"
        file.write_text(HEAD + config)
        return cluster_picker(
            api_server,
            monkeypatch,
            tmp_path,
            pool(namespace),
            config=load_text(HEAD + config, str(file), tmp_path),
            config_file=file,
            config_poll_seconds=0.02,
            allow_experimental_plugins=True,
            **settings,
        )

    return serve


def heard_by(diary: object) -> list[tuple[str, str, Any]]:
    found: list[tuple[str, str, Any]] = diary.heard  # type: ignore[attr-defined]  # of a plugin file
    return found


def heard(picker: Picker, name: str = "diary") -> list[tuple[str, str, Any]]:
    return heard_by(picker.app.pool.graph.plugins[name])


def watches(picker: Picker) -> list[str]:
    """Return what is followed for plugins."""
    assert picker.app._cluster is not None
    return list(picker.app._cluster._watches.statuses())


async def test_custom_resources_reach_a_plugin_and_a_reload_ends_their_watch(
    serve: Serve, namespace: Namespace, tmp_path: Path
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_objective("early", "pool", 1)
    file = tmp_path / "config.yaml"
    async with serve(OBJECTIVES) as picker:
        await until(lambda: heard(picker) == [("updated", "early", {"priority": 1})])
        await namespace.create_objective("late", "pool", 2)
        path = namespace.path(OBJECTIVE, "early")
        patch = {"spec": {"priority": 7}}
        (await namespace.admin.patch(path, json=patch, headers=MERGE_PATCH)).raise_for_status()
        await until(lambda: ("updated", "early", {"priority": 7}) in heard(picker))
        await namespace.admin.delete(path)
        await until(lambda: heard(picker)[-1] == ("deleted", "early", {"priority": 7}))
        assert ("updated", "late", {"priority": 2}) in heard(picker)
        diary, watch = picker.app.pool.graph.plugins["diary"], watches(picker)
        assert watch == [WATCH_OF_OBJECTIVES]
        async with httpx.AsyncClient(trust_env=False) as client:
            address = f"http://127.0.0.1:{picker.ports.metrics}"
            page = (await client.get(f"{address}/debug/kubernetes")).json()
            metrics = (await client.get(f"{address}/metrics")).text
        synced = {copy["resource"]: copy["synced"] for copy in page["copies"]}
        assert synced[WATCH_OF_OBJECTIVES]
        assert f'llm_d_epp_kubernetes_synced{{resource="{WATCH_OF_OBJECTIVES}"}} 1.0' in metrics
        # What stays is not read again; a new reader hears of what is there.
        more = '- {type: "file:diary.py:Diary", name: more}\n- type: k8s-'
        file.write_text(HEAD + OBJECTIVES.replace("- type: k8s-", more))
        await until(lambda: "more" in picker.app.pool.graph.plugins)
        assert heard(picker, "more") == [("updated", "late", {"priority": 2})]
        assert picker.app.pool.graph.plugins["diary"] is diary
        count = len(heard(picker))
        file.write_text(HEAD + NOTHING)
        await until(lambda: not watches(picker))
        assert len(heard_by(diary)) == count


async def test_plugins_of_each_of_several_pools_hear_of_the_objects(
    serve: Serve, namespace: Namespace
) -> None:
    for name in ("one", "two"):
        await namespace.create_pool(name, {"app": name}, [8000])
    await namespace.create_objective("a", "one", 1)
    several = PoolsSource(namespace.name, names=("one", "two"))
    async with serve(OBJECTIVES, pods=several) as picker:
        pools = picker.app.pools
        assert isinstance(pools, SeveralPools)
        await until(lambda: pools.pools.keys() == {"one", "two"})
        one, two = (pool.graph.plugins["diary"] for pool in pools.pools.values())
        assert one is not two
        await until(lambda: heard_by(one) == heard_by(two) == [("updated", "a", {"priority": 1})])
        assert watches(picker) == [WATCH_OF_OBJECTIVES]


async def test_a_kind_that_may_not_be_read_is_named_and_the_rest_works(
    serve: Serve, namespace: Namespace, api_server: ApiServer, logs: Logs
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_pods(pod_of(0))
    account = await create_account(namespace, "epp", PICKER_RULES[:2])
    token = api_server.tokens.issue(account)
    async with serve(OBJECTIVES, token=token) as picker:
        await until(lambda: len(picker.app.pool.store.snapshot) == 1)
        await logs.until('resources: ["inferenceobjectives"], verbs: ["watch"]')
        assert heard(picker) == []


async def test_the_role_that_the_documentation_gives_suffices(
    serve: Serve, namespace: Namespace, api_server: ApiServer
) -> None:
    await namespace.create_pool("pool", LABELS, [8000])
    await namespace.create_objective("a", "pool", 1)
    rules = (*PICKER_RULES[:2], rule("llm-d.ai", ["inferenceobjectives"], ["list", "watch"]))
    token = api_server.tokens.issue(await create_account(namespace, "epp", rules))
    async with serve(OBJECTIVES, token=token) as picker:
        await until(lambda: heard(picker) == [("updated", "a", {"priority": 1})])


TOPOLOGIES = """
plugins:
- {type: topology-extractor}
- {type: topology-affinity-scorer}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: topology-affinity-scorer}]}
"""


async def test_hosts_of_endpoints_are_the_nodes_of_their_pods(
    serve: Serve, namespace: Namespace
) -> None:
    zone = {"topology.kubernetes.io/zone": "z"}
    await namespace.create_pool("pool", LABELS, [8000, 8001])
    await namespace.create_pods(
        Pod(name="a", labels=LABELS | zone, ip="10.0.0.1", node="node-1"),
        Pod(name="b", labels=LABELS, ip="10.0.0.2"),
        Pod(
            name="c",
            labels=LABELS | {"kubernetes.io/hostname": "labelled"},
            ip="10.0.0.3",
            node="node-3",
        ),
    )

    def topology(endpoint: Endpoint) -> Topology | None:
        return endpoint.attribute(TOPOLOGY)

    async with serve(TOPOLOGIES) as picker:
        store = picker.app.pool.store
        await until(
            lambda: (
                [topology(each) for each in store.snapshot[:2]]
                == [Topology("node-1", zone="z"), Topology("node-1", zone="z")]
            )
        )
        await until(lambda: len(store.snapshot) == 6)
        assert [topology(each) for each in store.snapshot[2:]] == [
            *(None, None),
            *(Topology("labelled"), Topology("labelled")),
        ]
        binding = {"target": {"kind": "Node", "name": "node-2"}, "metadata": {"name": "b"}}
        path = namespace.path("pods", "b") + "/binding"
        (await namespace.admin.post(path, json=binding)).raise_for_status()
        await until(lambda: topology(store.snapshot[2]) == Topology("node-2"))
        assert topology(store.snapshot[3]) == Topology("node-2")


ROLLOUT = """
plugins:
- type: disaggregatedset-rollout-screener
  name: rollout
  parameters:
    scope: {labelSelector: app=vllm}
    headerSelectors:
    - {name: revision, headerName: x-disagg-revision, mode: strict,
       labelKey: disaggregatedset.x-k8s.io/revision}
    revisionGating:
      mode: max-role
      requireRoles: {values: [prefill, decode]}
- {type: decode-filter}
- {type: random-picker}
schedulingProfiles:
- {name: default, plugins: [{pluginRef: decode-filter}, {pluginRef: random-picker}]}
"""


async def test_requests_stay_within_the_complete_revisions_of_a_rollout(
    serve: Serve, namespace: Namespace
) -> None:
    def pod(number: int, revision: str, role: str, *, ready: bool = True) -> Pod:
        labels = {**LABELS, REVISION: revision, ROLE: role, "llm-d.ai/role": role}
        return pod_of(number, labels=labels, ready=ready)

    async with (
        pod_servers(4, time_scale=0.001) as servers,
        serve(ROLLOUT) as picker,
        gateway(picker, servers) as url,
        httpx.AsyncClient(timeout=10.0, trust_env=False) as client,
    ):
        rollout = picker.app.pool.graph.plugins["rollout"]
        assert isinstance(rollout, DisaggregatedSetRolloutScreener)

        async def revisions(**headers: str) -> set[str]:
            """Return the revisions that served 30 requests, or the statuses of those refused."""
            body = {"model": "tiny", "prompt": "Hello", "max_tokens": 1}
            found = set()
            for _ in range(30):  # by chance, one of two serves none once in 500 million runs
                response = await client.post(f"{url}/v1/completions", json=body, headers=headers)
                served = response.headers.get("x-disagg-revision", "")
                found.add(served if response.is_success else str(response.status_code))
            return found

        def shares() -> dict[str, float]:
            return {revision: share for (_, revision), share in rollout._read_shares().items()}

        await namespace.create_pool("pool", LABELS, [servers[0].port])
        await namespace.create_pods(pod(0, "a", "prefill"), pod(1, "a", "decode"))
        await namespace.create_pods(pod(2, "b", "decode"), pod(3, "b", "prefill", ready=False))
        await until(lambda: shares() == {"a": 1.0, "b": 0.0})
        await until(lambda: len(picker.app.pool.store.snapshot) == 3)
        assert await revisions() == {"a"}
        assert await revisions(**{"x-disagg-revision": "b"}) == {"503"}
        await namespace.patch_pods({"vllm-3": pod_status(ip=pod_of(3).ip, ready=True)})
        await until(lambda: shares() == {"a": 0.5, "b": 0.5})
        await until(lambda: len(picker.app.pool.store.snapshot) == 4)
        assert await revisions() == {"a", "b"}
        assert await revisions(**{"x-disagg-revision": "b"}) == {"b"}
        await namespace.delete_pods("vllm-0")
        await until(lambda: shares() == {"a": 0.0, "b": 1.0})
        assert await revisions() == {"b"}
