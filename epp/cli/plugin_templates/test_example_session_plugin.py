from collections.abc import Sequence
from pathlib import Path

import pytest

from epp.flow_control.session_plugins import find_builders
from epp.flow_control.sessions import (
    Allocate,
    Binding,
    Cluster,
    Dispatcher,
    Eviction,
    Job,
    Node,
    PluginSetting,
    Queue,
    Task,
)

NAME = f"file:{Path(__file__).with_name('example_session_plugin.py')}:ExampleSessionPlugin"
ARGUMENTS = {"tenant": "batch", "label": "tier", "value": "gold"}


class World:
    """Accepts every placement of a session."""

    def commit(self, evictions: Sequence[Eviction], bindings: Sequence[Binding]) -> None:
        pass


def placed_on(tenant: str, *tiers: str) -> str | None:
    """Run a session for one request of a tenant; return its endpoint, or None."""
    task, queue, cluster = Task("task", namespace=tenant), Queue("queue"), Cluster()
    cluster.add_queue(queue)
    cluster.add_job(Job("job", queue=queue, tasks=[task]))
    for tier in tiers:
        cluster.add_node(Node(f"{tier}-server", labels={"tier": tier}))
    settings = {NAME: PluginSetting(arguments=ARGUMENTS)}
    faults: list[object] = []
    dispatcher = Dispatcher(
        cluster,
        World(),
        plugins=find_builders(settings).build(settings),
        actions=[Allocate()],
        fault=lambda *fault: faults.append(fault),
    )
    dispatcher.run()
    assert not faults
    return task.node.name if task.node is not None else None


@pytest.mark.parametrize(
    ("tenant", "tiers", "want"),
    [
        pytest.param("batch", ["gold", "silver"], "silver-server", id="the tenant, elsewhere"),
        pytest.param("batch", ["gold"], None, id="the tenant waits"),
        pytest.param("chat", ["gold"], "gold-server", id="another tenant"),
    ],
)
def test_the_tenant_stays_off_the_endpoints_with_the_label(
    tenant: str, tiers: list[str], want: str | None
) -> None:
    assert placed_on(tenant, *tiers) == want
