"""Findings of the doctor about failing plugins, and about ports."""

import socket

import pytest

from epp.building import make_builder
from epp.config import load_text
from epp.doctor import Deployment, Diagnosis, Level, examine_deployment, try_ports

from .envoys import rows_of

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
GOLD = """\
plugins:
- {type: by-label, name: gold, parameters: {label: tier, validValues: [gold]}}
- {type: queue-scorer}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: gold}, {pluginRef: queue-scorer}]
"""


def examined(text: str) -> Diagnosis:
    graph = make_builder().build(load_text(HEAD + text, "config.yaml"))
    return examine_deployment(Deployment(graph=graph, is_config_given=True))


def test_a_filter_that_fails_closed_is_named() -> None:
    rows = rows_of(examined(GOLD), "plugin-policy")
    assert {row.finding.level for row in rows} == {Level.OK}
    closed, opened, handler = (row.finding.found for row in rows)
    assert closed.startswith("fail closed: gold.")
    assert "scorers queue-scorer (add nothing)" in opened
    assert "gold" not in opened
    assert "answered with 500" in handler


def test_a_filter_by_label_that_is_set_to_fail_open_is_a_warning_that_can_be_mended() -> None:
    found = examined(GOLD + "extensions: {guardRails: {failurePolicy: {gold: open}}}\n")
    first = rows_of(found, "plugin-policy")[0].finding
    assert first.level is Level.WARNING
    assert first.where == "extensions.guardRails.failurePolicy.gold"
    assert first.fix is not None
    assert (first.fix.path, first.fix.value) == (first.where, '"closed"')


@pytest.mark.parametrize("is_used", [False, True], ids=["free", "used"])
def test_ports_that_are_used(is_used: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not is_used:
            server.close()
        ports = tuple(try_ports("127.0.0.1", {"--grpc-port": port, "--metrics-port": 0}))
    rows = rows_of(examine_deployment(Deployment(ports=ports)), "ports")
    assert [row.finding.level for row in rows] == [Level.ERROR if is_used else Level.OK]


def test_a_port_that_is_given_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ports = tuple(try_ports("127.0.0.1", {"--grpc-port": port, "--metrics-port": port}))
    (row,) = rows_of(examine_deployment(Deployment(ports=ports)), "ports")
    assert row.finding.where == "--grpc-port --metrics-port"
    (fault,) = try_ports("192.0.2.1", {"--grpc-port": port})  # TEST-NET-1, nobody's address
    assert fault.fault == "Cannot assign requested address"
