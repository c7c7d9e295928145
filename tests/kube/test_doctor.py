"""The doctor and a real API server: version, kinds, and the rights of accounts."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from kube.charts import MINIMAL

from epp.data_layer import ObjectKind
from epp.doctor import Deployment, DiagnosisRow, Level, examine_deployment
from epp.doctor.cluster import ClusterView, Kind, Need
from epp.doctor.cluster.asking import ask
from epp.doctor.cluster.rights import ClusterUse, calls_of, kinds_of
from epp.kubernetes.api import Connection, load_connection
from epp.kubernetes.source import POOL_GROUP, PodSelection, PodSource, PoolRef, PoolsSource
from tools.chart.helm import Helm
from tools.chart.kustomize import merged
from tools.harness.kube.access import (
    LEADER_ELECTION_RULES,
    METRICS_AUTH_RULES,
    PICKER_RULES,
    STATUS_RULES,
    create_account,
    grant_cluster_role,
    rule,
)
from tools.harness.kube.audit import Right, granted
from tools.harness.kube.objects import Namespace
from tools.harness.kube.server import ApiServer


def use_of(namespace: Namespace) -> ClusterUse:
    return ClusterUse(source=PodSource(namespace.name, PoolRef("pool")), elects_leader=True)


async def connection_of(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch, folder: Path, token: str = ""
) -> Connection:
    path = folder / "kubeconfig"
    api_server.write_kubeconfig(path, **({"token": token} if token else {}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return await asyncio.to_thread(load_connection)


def refused(view: ClusterView) -> list[DiagnosisRow]:
    report = examine_deployment(Deployment(cluster=view))
    return [row for row in report.rows if row.finding.level is not Level.OK]


async def test_an_account_with_all_rights(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    rules = (*PICKER_RULES, *STATUS_RULES, *LEADER_ELECTION_RULES)
    account = await create_account(namespace, "epp", rules)
    await grant_cluster_role(namespace, account, METRICS_AUTH_RULES)
    token = api_server.tokens.issue(account)
    connection = await connection_of(api_server, monkeypatch, tmp_path, token)
    view = await ask(connection, use_of(namespace))
    assert view.fault == ""
    assert view.version.startswith("v1.")
    assert refused(view) == []
    report = examine_deployment(Deployment(cluster=view))
    kinds = [row.finding.found for row in report.rows if row.check == "kubernetes-kinds"]
    assert f"served: inferencepools.{POOL_GROUP} (v1)" in kinds


async def test_each_missing_right_is_named_with_the_rule_to_add(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Lists pods, but watches none; no leases, no reviews, no status.
    rules = (rule("", ["pods"], ["list"]), *PICKER_RULES[1:])
    account = await create_account(namespace, "epp", rules)
    token = api_server.tokens.issue(account)
    connection = await connection_of(api_server, monkeypatch, tmp_path, token)
    view = await ask(connection, use_of(namespace))
    rows = refused(view)
    errors = [row.finding for row in rows if row.finding.level is Level.ERROR]
    assert [(each.where, each.found.partition(" (")[0]) for each in errors] == [
        ("pods", "this account may not watch"),
        ("leases.coordination.k8s.io", "this account may not get, create, update"),
    ]
    assert errors[0].mend == (
        f"Add to a Role of the namespace {namespace.name}:"
        ' {apiGroups: [""], resources: [pods], verbs: [watch]}'
    )
    warnings = {row.finding.where for row in rows if row.finding.level is Level.WARNING}
    assert warnings >= {
        "events",
        "inferenceobjectives/status.llm-d.ai",
        "tokenreviews.authentication.k8s.io",
        "subjectaccessreviews.authorization.k8s.io",
    }


async def test_an_administrator_asks_for_the_rights_of_another_account(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    await create_account(namespace, "epp", PICKER_RULES)
    connection = await connection_of(api_server, monkeypatch, tmp_path)
    use = replace(use_of(namespace), elects_leader=False, writes_status=False, reviews_tokens=False)
    assert refused(await ask(connection, use)) == []
    assert refused(await ask(connection, use, "epp")) == []
    rows = refused(await ask(connection, use, "other"))
    assert {row.finding.where for row in rows} >= {"pods", f"inferencepools.{POOL_GROUP}"}
    assert f"system:serviceaccount:{namespace.name}:other may not" in rows[0].finding.found


async def test_kinds_that_are_not_there_and_objects_of_plugins(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    connection = await connection_of(api_server, monkeypatch, tmp_path)
    nodes, unknown = ObjectKind("", "v1", "Node"), ObjectKind("none.example", "v1", "Nothing")
    selection = PodSource(namespace.name, selection=PodSelection("app=vllm", (8000,)))
    use = ClusterUse(source=selection, objects=((nodes, True), (unknown, False)))
    view = await ask(connection, use, "nobody")
    assert [(kind.name, kind.is_served) for kind in view.kinds] == [
        ("nodes (v1)", True),
        ("Nothing (v1)", False),
    ]
    (row,) = [each for each in refused(view) if each.finding.where == "nodes"]
    assert row.finding.mend.startswith("Add to a ClusterRole")
    pools = ClusterUse(source=PoolsSource(namespace.name, "none.example"))
    report = examine_deployment(Deployment(cluster=await ask(connection, pools)))
    assert [r.finding.level for r in report.rows if r.check == "kubernetes-kinds"] == [Level.OK] * 3


async def test_an_api_server_that_is_away(
    api_server: ApiServer,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    connection = await connection_of(api_server, monkeypatch, tmp_path)
    await asyncio.to_thread(api_server.stop)
    view = await ask(connection, use_of(namespace))
    (row,) = refused(view)
    assert row.check == "kubernetes"
    assert row.finding.level is Level.ERROR


def test_versions_and_kinds_that_are_missing() -> None:
    missing = Kind(f"inferencepools.{POOL_GROUP} (v1)", "InferencePool", Need.SERVE, "x", False)
    view = ClusterView(server="https://it", account="", version="v1.28.3", kinds=(missing,))
    assert [(row.finding.level.value, row.check) for row in refused(view)] == [
        ("error", "kubernetes-kinds"),
        ("warning", "kubernetes-version"),
    ]
    assert refused(replace(view, version="v1.34.1", kinds=())) == []


def test_the_doctor_asks_for_the_rights_that_the_chart_grants(helm: Helm) -> None:
    objects = helm.render(merged(MINIMAL, {"router": {"epp": {"replicas": 2}}}), namespace="prod")
    rules = [
        rule
        for each in objects
        if each["kind"] in {"Role", "ClusterRole"} and "reader" not in each["metadata"]["name"]
        for rule in each["rules"]
    ]
    use = ClusterUse(source=PodSource("prod", PoolRef("llama")), elects_leader=True)
    asked = {
        Right(each.resource.group, plural, verb)
        for each in kinds_of(use)
        for plural, verbs in (
            (each.resource.plural, each.verbs),
            (f"{each.resource.plural}/status", each.status_verbs),
        )
        for verb in verbs
    } | {
        Right(each.resource.group, each.resource.plural, verb)
        for each in calls_of(use)
        for verb in each.verbs
    }
    assert granted(rules) == asked
