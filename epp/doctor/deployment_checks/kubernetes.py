"""Checks of a Kubernetes cluster: version, kinds, rights, and the copies of a running EPP."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from epp.doctor.check import Check
from epp.doctor.cluster import Access, Need
from epp.doctor.deployment import Deployment
from epp.doctor.deployment_checks import give
from epp.doctor.findings import Finding, error, note, warning

OLDEST: Final = (1, 29)
"""First version with sidecar containers, which the Helm chart requires."""

_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)")


def _reached(deployment: Deployment) -> Iterator[Finding]:
    cluster = deployment.cluster
    if cluster is not None and cluster.fault:
        yield error(
            cluster.server,
            cluster.fault,
            "epp serve finds no endpoints there",
            "Set KUBECONFIG, or run the doctor in a pod with a service account",
        )


def _version(deployment: Deployment) -> Iterator[Finding]:
    cluster = deployment.cluster
    match = None if cluster is None else _VERSION.match(cluster.version)
    if cluster is None or match is None:
        return
    found = f"Kubernetes {cluster.version}"
    if (int(match[1]), int(match[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield warning(
            cluster.server,
            found,
            f"The Helm chart needs {oldest}, and the EPP is not tested with older ones",
            f"Take Kubernetes {oldest} or newer",
        )
    else:
        yield note(cluster.server, found)


def _kinds(deployment: Deployment) -> Iterator[Finding]:
    groups = defaultdict(list)
    for kind in deployment.cluster.kinds if deployment.cluster is not None else ():
        groups[kind.alternatives].append(kind)
    for title, kinds in groups.items():
        served = [kind.name for kind in kinds if kind.is_served]
        names = " or ".join(kind.name for kind in kinds)
        if served:
            yield note(title, f"served: {', '.join(served)}")
        elif kinds[0].need is Need.SERVE:
            why = f"Without it {kinds[0].without}"
            yield error(title, f"not served: {names}", why, f"Install the CRD of {title}")
        else:
            yield note(title, f"not served: {names}. Without it {kinds[0].without}")


def _access(deployment: Deployment) -> Iterator[Finding]:
    refused: dict[tuple[str, str, str], list[Access]] = defaultdict(list)
    for each in deployment.cluster.access if deployment.cluster is not None else ():
        if not each.allowed:
            refused[each.group, each.resource, each.namespace].append(each)
    account = deployment.cluster.account if deployment.cluster is not None else ""
    for (group, resource, namespace), lines in refused.items():
        first, verbs = lines[0], ", ".join(each.verb for each in lines)
        level = error if first.need is Need.SERVE else warning
        kind = f"a Role of the namespace {namespace}" if namespace else "a ClusterRole"
        yield level(
            f"{resource}.{group}" if group else resource,
            f"{account or 'this account'} may not {verbs}"
            + (f" ({first.reason})" if first.reason else ""),
            f"Without it {first.without}",
            f"Add to {kind}: {{apiGroups: [{_quoted(group)}], resources: [{resource}], verbs:"
            f" [{verbs}]}}",
        )


def _quoted(group: str) -> str:
    return group or '""'


def _copies(deployment: Deployment) -> Iterator[Finding]:
    picker = deployment.picker
    state = None if picker is None else picker.kubernetes
    if state is None:
        return
    if not state.is_pool_known:
        yield error(
            "/debug/kubernetes",
            "the pool is not known",
            "There are no endpoints",
            "Create the InferencePool that --pool-name names, and see rbac",
        )
    if state.lease_fault:
        why = "The replicas do not agree on a leader"
        yield error("/debug/kubernetes", state.lease_fault, why, "See rbac")
    for copy in state.copies:
        if copy.fault:
            why = "The EPP goes on with what it knew last"
            yield error(copy.resource, copy.fault, why, "See rbac, and whether the server is there")


def _is_reached(deployment: Deployment) -> bool:
    return deployment.cluster is not None and not deployment.cluster.fault


CHECKS = (
    Check(
        "kubernetes",
        _reached,
        "the API server answers",
        lambda deployment: deployment.cluster is not None,
        give.CLUSTER,
    ),
    Check("kubernetes-version", _version, "its version is unknown", _is_reached, give.CLUSTER),
    Check("kubernetes-kinds", _kinds, "no kinds are needed", _is_reached, give.CLUSTER),
    Check("rbac", _access, "all calls are allowed", _is_reached, give.CLUSTER),
    Check(
        "kubernetes-copies",
        _copies,
        "the EPP's copies of the cluster's objects are current",
        lambda deployment: (
            deployment.picker is not None and deployment.picker.kubernetes is not None
        ),
        "--epp URL of an EPP in a cluster",
    ),
)
