"""Configurations that need one process are refused, with the reason and a remedy."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from epp.admin import ExplainSettings
from epp.app import App
from epp.config import ConfigError, load_text
from epp.kubernetes.source import PodSelection, PodSource, PoolsSource
from epp.replication import ReplicaSettings
from epp.settings import ServeSettings
from epp.workers import Place, WorkerError, WorkerSharing, check_workers
from epp.workers.flight_rows import ROW_BYTES
from epp.workers.leadership import Leadership
from epp.workers.links import Links
from epp.workers.worker import worker_settings

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
"""
PODS = PodSource("d", selection=PodSelection("app=vllm", (8000,)))


def settings(**more: Any) -> ServeSettings:
    fields = {"workers": 2, "endpoints": ("10.0.0.1:8000",), "config": load_text(CONFIG, "test")}
    return ServeSettings(**{**fields, **more})


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"pods": PODS, "elects_leader": True}, "--ha-enable-leader-election lets one process"),
        ({"pods": PoolsSource("d", group="g")}, "one endpoint picker for each pool"),
        ({"transport": "grpcio"}, "--transport grpcio cannot share its port; leave it out"),
    ],
    ids=["leader election", "several pools", "grpcio"],
)
def test_what_needs_one_process_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(WorkerError, match=f"^--workers 2: .*{why}"):
        check_workers(settings(**more))


def test_everything_else_is_accepted() -> None:
    check_workers(settings())
    check_workers(settings(pods=PODS))
    check_workers(settings(elects_leader=True))  # of no meaning without Kubernetes


GATE = "featureGates: [flowControl]\n"
EVICTING = "flowControl: {enableEviction: true}\n"
DETECTOR = """
plugins:
- {type: predicted-time-detector}
flowControl: {saturationDetector: {pluginRef: predicted-time-detector}}
"""
ORDERING = """
plugins:
- {type: predicted-time-ordering-policy}
flowControl:
  defaultPriorityBand: {orderingPolicyRef: predicted-time-ordering-policy}
"""
NODE_SPREAD = "extensions: {sessions: {plugins: {node-spread: {}}}}\n"


def app(folder: Path, text: str) -> App:
    """Make worker 0 of an endpoint picker."""
    memory = memoryview(bytearray(2 * ROW_BYTES))
    links = Links(folder, 0, 2)
    sharing = WorkerSharing(memory, links, Leadership(), place(0))
    given = settings(config=load_text(f"{CONFIG}{text}", "test"))
    return App(given, sharing=sharing, make_flow=sharing.make_flow)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (NODE_SPREAD, "session plugin 'node-spread' decides where each request goes"),
        (
            f"extensions: {{sessions: {{actions: [allocate, reclaim]}}}}\n{EVICTING}",
            "action 'reclaim' decides by where each request is",
        ),
        (
            DETECTOR,
            "plugin 'predicted-time-detector' reads '.*', which a data producer computes",
        ),
        (
            ORDERING,
            "plugin 'predicted-time-ordering-policy' reads '.*', which a data producer computes",
        ),
        (
            "plugins:\n- {type: predicted-time-room-filter}\n",
            "plugin 'predicted-time-room-filter' compares all endpoints",
        ),
    ],
    ids=["session plugin", "reclaim", "detector", "ordering policy", "holding"],
)
async def test_what_must_see_the_requests_of_all_workers_is_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=f"^test: flow control with --workers 2: .*{why}"):
        await asyncio.to_thread(app, tmp_path, GATE + text)
    await asyncio.to_thread(
        App, settings(config=load_text(f"{CONFIG}{GATE}{text}", "test"), workers=1)
    )


async def test_flow_control_and_plugins_that_it_does_not_ask_are_accepted(tmp_path: Path) -> None:
    await asyncio.to_thread(app, tmp_path, GATE)
    await asyncio.to_thread(app, tmp_path, NODE_SPREAD)  # without flow control


def place(index: int, **more: Any) -> Place:
    return Place(
        index=index,
        count=2,
        memory=3,
        control=4,
        folder="/run/x",
        grpc_port=9002,
        is_port_shared=True,
        name="host:9002",
        **more,
    )


def test_each_worker_has_its_own_sockets_files_and_random_choices() -> None:
    given = settings(
        socket_file=Path("/run/epp.sock"),
        explain=ExplainSettings(explain_file=Path("/var/decisions.jsonl")),
        seed=5,
    )
    made = [worker_settings(given, place(index)) for index in range(2)]
    assert [str(each.socket_file) for each in made] == ["/run/epp-0.sock", "/run/epp-1.sock"]
    assert [str(each.metrics_socket) for each in made] == ["/run/x/pages-0", "/run/x/pages-1"]
    assert str(made[1].explain.explain_file) == "/var/decisions-1.jsonl"
    assert len({each.seed for each in made}) == 2
    assert [each.writes_object_status for each in made] == [True, False]
    assert all(each.transport_settings.reuse_port for each in made)
    assert worker_settings(settings(), place(1)).seed is None


def test_workers_watch_the_cluster_through_the_supervisor_if_it_does() -> None:
    relayed = [worker_settings(settings(), place(index, has_relay=True)) for index in range(2)]
    assert [str(each.watch_relay) for each in relayed] == ["/run/x/watches"] * 2
    assert worker_settings(settings(), place(0)).watch_relay is None


def test_workers_share_the_state_of_plugins_like_replicas_do() -> None:
    alone = worker_settings(settings(), place(1)).replicas
    assert alone.replica_state == "unix:///run/x/replicas"
    assert alone.replica_name == "host:9002/1"
    elsewhere = settings(replicas=ReplicaSettings(replica_state="redis://redis:6379"))
    assert worker_settings(elsewhere, place(0)).replicas.replica_state == "redis://redis:6379"
    assert place(0).siblings == {"host:9002/0", "host:9002/1"}


def test_a_place_is_read_once_from_the_environment() -> None:
    environment = {"EPP_WORKER": place(1).text(), "PATH": "/bin"}
    assert Place.of(environment) == place(1)
    assert environment == {"PATH": "/bin"}
    assert Place.of(environment) is None


def test_a_place_that_somebody_has_made_up_is_refused() -> None:
    with pytest.raises(ValueError, match="EPP_WORKER is set by `epp serve --workers` only"):
        Place.of({"EPP_WORKER": "1"})
