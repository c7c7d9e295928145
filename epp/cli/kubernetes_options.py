"""Options of discovery from the Kubernetes API: which pods are the endpoints."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from epp.cli.settings_options import read_options
from epp.cli.units import count
from epp.inputs import MAX_PORT
from epp.kubernetes.settings import KubernetesSettings
from epp.kubernetes.source import PodSelection, PodSource, PoolRef, PoolsSource

_log = structlog.get_logger(__name__)

_MAX_PORTS: Final = 8
_OF_A_DEPLOYMENT: Final = re.compile(r"(.+)-[a-z0-9]+-[a-z0-9]+")
"""Matches the names of a Deployment's pods."""

_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_KEY: Final = rf"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?{_NAME}"
_VALUE: Final = rf"(?:{_NAME})?"
_VALUES: Final = rf"\(\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*\)"
_TEST: Final = rf"\s*(?:==?|!=)\s*{_VALUE}|\s*[<>]\s*\d+|\s+(?:not)?in\s*{_VALUES}"
_REQUIREMENT: Final = rf"\s*(?:!\s*{_KEY}|{_KEY}(?:{_TEST})?)\s*"
_LABEL_SELECTOR: Final = re.compile(rf"{_REQUIREMENT}(?:,{_REQUIREMENT})*")
"""Matches the label selectors that the API server accepts."""


def pods_and_pool_name(
    values: Mapping[str, object],
    environ: Mapping[str, str],
    *,
    has_endpoints: bool,
) -> tuple[PodSource | PoolsSource | None, str]:
    """Return the source of the endpoints in the cluster, or None, and the pool's name.

    Args:
        values: Values of the command's parameters, by name.
        environ: Environment variables; ``NAMESPACE`` and ``POD_NAME`` are read.
        has_endpoints: Whether other options name the endpoints, so that no pods are used.

    Raises:
        ValueError: An option is invalid, missing, or contradicts another.
    """
    settings = KubernetesSettings(**read_options(KubernetesSettings, values))
    folder = values["pool_config_dir"]
    if isinstance(folder, Path) and not folder.is_dir():
        raise ValueError(f"--pool-config-dir: {folder} is not a directory")
    pods = pod_source(settings, environ)
    if has_endpoints:
        if settings.all_pools:
            raise ValueError("--all-pools needs pods: leave out the options that name endpoints")
        return None, _one_name(settings)
    if isinstance(pods, PodSource) and pods.pool is None:
        return pods, _pool_name_of_pod(environ)
    return pods, _one_name(settings)


def warn_of_unused_kubernetes_options(
    values: Mapping[str, object], pods: PodSource | PoolsSource | None, *, has_endpoints: bool
) -> None:
    """Warn about options without effect.

    Args:
        values: Values of the command's parameters, by name.
        pods: Source of the endpoints in the cluster; None if they do not come from it.
        has_endpoints: Whether endpoints are given on the command line.
    """
    if pods is None and has_endpoints and values["endpoint_selector"]:
        _log.warning("endpoints are named, so --endpoint-selector has no effect")
    if pods is None and values["elects_leader"] in {True, "true"}:
        _log.warning(
            "endpoints do not come from Kubernetes, so --ha-enable-leader-election has no effect"
        )
    if values["pool_config_dir"] and not isinstance(pods, PoolsSource):
        _log.warning("at most one pool is served, so --pool-config-dir has no effect")


def pod_source(
    settings: KubernetesSettings, environ: Mapping[str, str]
) -> PodSource | PoolsSource | None:
    """Return the source of the endpoints; None if neither pools nor labels are given.

    Args:
        settings: The options.
        environ: Environment variables; ``NAMESPACE`` is read.

    Raises:
        ValueError: An option is invalid, missing, or contradicts another.
    """
    selector, ports = settings.endpoint_selector.strip(), settings.endpoint_target_ports
    if bool(selector) != bool(ports):
        raise ValueError("--endpoint-selector and --endpoint-target-ports: give both, or neither")
    namespace = settings.pool_namespace or environ.get("NAMESPACE") or "default"
    names = tuple(dict.fromkeys(filter(None, settings.pool_name)))
    if settings.all_pools and names:
        raise ValueError("--all-pools and --pool-name exclude each other")
    if selector:
        if settings.all_pools:
            raise ValueError("--all-pools and --endpoint-selector exclude each other")
        if names:
            raise ValueError("--pool-name and --endpoint-selector exclude each other")
        if not _LABEL_SELECTOR.fullmatch(selector):
            raise ValueError(
                f"--endpoint-selector: {selector!r} is no label selector such as app=vllm or"
                " app in (vllm, sglang),!canary"
            )
        return PodSource(namespace, selection=PodSelection(selector, _target_ports(ports)))
    if settings.all_pools or len(names) > 1:
        return PoolsSource(namespace, settings.pool_group, names)
    return PodSource(namespace, PoolRef(names[0], settings.pool_group)) if names else None


def _one_name(settings: KubernetesSettings) -> str:
    # Without pods to select, the last of repeated names counts, as in the Go EPP.
    return settings.pool_name[-1] if settings.pool_name else "default"


def _pool_name_of_pod(environ: Mapping[str, str]) -> str:
    """Return the name of a pool without InferencePool in metrics: that of the EPP's Deployment."""
    pod = environ.get("POD_NAME", "")
    match = _OF_A_DEPLOYMENT.fullmatch(pod)
    if match is None:
        raise ValueError(
            "--endpoint-selector: the pool is named after this pod, so the variable POD_NAME must"
            f" be the name of a pod of a Deployment, NAME-HASH-HASH; it is {pod!r}"
        )
    return match[1]


def _target_ports(text: str) -> tuple[int, ...]:
    try:
        ports: Sequence[int] = list(dict.fromkeys(count(each.strip()) for each in text.split(",")))
    except ValueError as error:
        raise ValueError(f"--endpoint-target-ports: {error}") from None
    wrong = [port for port in ports if not 1 <= port <= MAX_PORT]
    if wrong:
        raise ValueError(f"--endpoint-target-ports: port {wrong[0]} is not from 1 to {MAX_PORT}")
    if len(ports) > _MAX_PORTS:
        raise ValueError(
            f"--endpoint-target-ports: {len(ports)} ports are given, {_MAX_PORTS} are the most"
        )
    return tuple(ports)
