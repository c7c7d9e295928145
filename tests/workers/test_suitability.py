"""What needs one process is refused, with the reason and what to do instead."""

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
from epp.workers import Place, WorkerError, check_workers
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


async def test_flow_control_is_refused_with_the_configuration() -> None:
    config = load_text(f"{CONFIG}featureGates: [flowControl]\n", "test")
    with pytest.raises(ConfigError, match="needs all requests of a pool in one process"):
        await asyncio.to_thread(App, settings(config=config))
    await asyncio.to_thread(App, settings(config=config, workers=1))


def place(index: int) -> Place:
    return Place(
        index=index,
        count=2,
        memory=3,
        control=4,
        folder="/run/x",
        grpc_port=9002,
        is_port_shared=True,
        name="host:9002",
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
