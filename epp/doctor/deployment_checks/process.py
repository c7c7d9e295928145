"""Checks of the process: its ports, and whether it is ready."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from epp.doctor.check import Check
from epp.doctor.deployment import Deployment
from epp.doctor.deployment_checks import give
from epp.doctor.findings import Finding, error, note, warning

_SERVING: Final = "SERVING"
_INFO: Final = "llm_d_epp_info"


def _ports(deployment: Deployment) -> Iterator[Finding]:
    options: dict[int, list[str]] = defaultdict(list)
    for each in deployment.ports or ():
        options[each.port].append(each.option)
        if each.fault:
            yield error(
                each.option,
                f"port {each.port}: {each.fault}",
                "epp serve does not start",
                "Stop what uses it, or set another port; if an EPP runs here, give --epp instead",
            )
    for port, names in options.items():
        if len(names) > 1:
            yield error(
                " ".join(names),
                f"port {port} is given twice",
                "epp serve does not start",
                "Give each its own port",
            )


def _ready(deployment: Deployment) -> Iterator[Finding]:
    readiness = "" if deployment.picker is None else deployment.picker.readiness
    if readiness != _SERVING:
        yield error(
            "readiness",
            readiness,
            "Gateways with a health check send it no request, and its pod is not ready",
            "See /readyz and the log of the EPP: it waits for endpoints, leads not, or drains",
        )


def _ext_proc(deployment: Deployment) -> Iterator[Finding]:
    port = None if deployment.picker is None else deployment.picker.ext_proc
    expected = deployment.pickers_speak_tls
    if port is None:
        return
    if port.fault:
        yield error(
            port.address,
            port.fault,
            "Envoy cannot ask the EPP: requests fail with 500, or pass it by",
            "Give the --grpc-port of the EPP, and let this machine and Envoy reach it",
        )
    elif expected is not None and port.speaks_tls is not expected:
        yield error(
            port.address,
            f"speaks {_spoken(bool(port.speaks_tls))}, and Envoy {_spoken(expected)}",
            "Every request fails with 500",
            "Set transport_socket of the EPP's cluster to envoy.transport_sockets.tls"
            if port.speaks_tls
            else "Take transport_socket of the EPP's cluster out, or start the EPP without"
            " --secure-serving=false",
        )
    else:
        yield note(port.address, f"speaks {_spoken(bool(port.speaks_tls))}")


def _spoken(is_tls: bool) -> str:
    return "HTTP/2 over TLS" if is_tls else "HTTP/2 in plaintext"


def _pages(deployment: Deployment) -> Iterator[Finding]:
    picker = deployment.picker
    for fault in () if picker is None else picker.faults:
        yield warning(
            "",
            fault,
            "What that page shows was not checked",
            "Let the account of --page-token-file read it, or take an EPP of this version",
        )


def _version(deployment: Deployment) -> Iterator[Finding]:
    picker = deployment.picker
    for labels, _ in () if picker is None else picker.series(_INFO):
        shown = ", ".join(f"{name} {value}" for name, value in sorted(labels.items()) if value)
        yield note(picker.url if picker else "", f"built from {shown or 'an unknown commit'}")


def _is_running(deployment: Deployment) -> bool:
    return deployment.picker is not None


CHECKS = (
    Check(
        "ports",
        _ports,
        "the ports are free",
        lambda deployment: deployment.ports is not None,
        f"{give.PORTS}, on the machine of the EPP, before it starts",
    ),
    Check(
        "epp-ready",
        _ready,
        "the EPP is ready",
        lambda deployment: deployment.picker is not None and deployment.picker.readiness,
        give.EPP_AND_HEALTH,
    ),
    Check(
        "epp-port",
        _ext_proc,
        "the EPP's port for gateways answers",
        lambda deployment: deployment.picker is not None and deployment.picker.ext_proc,
        "--epp URL and --grpc-port",
    ),
    Check("epp-pages", _pages, "all pages could be read", _is_running, give.EPP),
    Check("epp-version", _version, "the EPP does not say its version", _is_running, give.EPP),
)
