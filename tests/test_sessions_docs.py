"""docs/sessions.md: the plugin for requests does what the page says."""

import asyncio
import re
from pathlib import Path

import pytest
from deploy.queueing import QueueingEpp

from epp.building import make_builder
from epp.config import PluginGraph, load_file
from tools.harness.controls import control_of

PAGE = (Path(__file__).parents[1] / "docs" / "sessions.md").read_text()
CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: concurrency-detector
  parameters: {maxConcurrency: 2}
flowControl: {saturationDetector: {pluginRef: concurrency-detector}}
extensions: {sessions: {plugins: {"file:keep_off.py:KeepOff": {arguments: {tenant: batch}}}}}
"""


@pytest.fixture
def graph(tmp_path: Path) -> PluginGraph:
    """The graph of a configuration with the page's plugin."""
    _, _, rest = PAGE.partition("`keep_off.py`:")
    match = re.search(r"^```python\n(.*?)^```$", rest, re.M | re.S)
    assert match is not None
    (tmp_path / "keep_off.py").write_text(match[1])
    (tmp_path / "epp.yaml").write_text(CONFIG)
    return make_builder().build(load_file(tmp_path / "epp.yaml"))


@pytest.mark.looptime
async def test_the_plugin_for_requests_keeps_a_tenant_off_endpoints(graph: PluginGraph) -> None:
    tiers = {name: {"labels": {"tier": name}} for name in ("bronze", "gold", "silver")}
    epp = QueueingEpp(graph, tiers)
    for number in range(5):
        epp.ask(f"batch-{number}", tenant="batch")
    # Two for each endpoint: four fill those where the tenant may go, silver is always preferred.
    assert (epp.at("silver"), epp.waiting) == (4, 1)
    await asyncio.sleep(1)
    (parked,) = control_of(epp.flow).ledger.parking.requests
    assert "gold is not for tenant batch" in parked.reasons
    epp.ask("chat", tenant="chat")
    await asyncio.sleep(1)
    assert "chat" in epp.in_flight
    page = control_of(epp.flow).sessions.dispatcher.points.http_handlers["in-flight"].function
    assert page() == {"batch": 4, "chat": 1}
    for _ in range(2):  # chat may have gone where the tenant may go, too
        await epp.end_one()
    await asyncio.sleep(1)
    assert epp.in_flight["batch-4"].endpoint.name == "silver"
    while epp.in_flight:
        await epp.end_one()
    assert page() == {"batch": 0, "chat": 0}
