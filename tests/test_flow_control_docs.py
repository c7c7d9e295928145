"""docs/flow-control.md: its configurations load, its policy works, its tables are complete."""

import asyncio
import re
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from deploy.queueing import QueueingEpp

from epp.building import make_builder
from epp.config import PluginGraph, PluginRegistry, load_file, load_text
from epp.config.schema import (
    BandExtension,
    FlowControlEntry,
    FlowControlExtension,
    PriorityBand,
)
from epp.flow_control import (
    FairnessPolicy,
    OrderingPolicy,
    Outcome,
    SaturationDetector,
    UsageLimitPolicy,
)

PAGE = (Path(__file__).parents[1] / "docs" / "flow-control.md").read_text()
ELSEWHERE = {"priority", "saturationDetector"}
"""Fields that the page tells of in other words."""


def block(language: str, after: str) -> str:
    """Return the first block of a language behind a text."""
    _, found, rest = PAGE.partition(after)
    assert found
    match = re.search(rf"^```{language}\n(.*?)^```$", rest, re.M | re.S)
    assert match is not None
    return match[1]


def test_the_first_configuration_builds_without_a_warning() -> None:
    graph = make_builder().build(load_text(block("yaml", "## Turning it on"), "docs"))
    assert (graph.warnings, graph.config.warnings) == ((), ())


@pytest.fixture
def graph(tmp_path: Path) -> PluginGraph:
    """The graph of the page's own policy."""
    (tmp_path / "fewest_in_flight.py").write_text(block("python", "`fewest_in_flight.py`"))
    (tmp_path / "epp.yaml").write_text(block("yaml", "`epp.yaml`"))
    return make_builder().build(load_file(tmp_path / "epp.yaml"))


@pytest.mark.looptime
async def test_the_policy_of_ones_own_does_what_the_page_says(graph: PluginGraph) -> None:
    assert (graph.warnings, graph.config.warnings) == ((), ())
    epp = QueueingEpp(graph, {"a": {}, "b": {}})
    for number in range(7):
        epp.ask(f"hog-{number}", tenant="hog")
    for number in range(3):
        epp.ask(f"modest-{number}", tenant="modest")
    assert (len(epp.in_flight), epp.waiting) == (4, 6)
    for _ in range(3):
        await asyncio.sleep(1)  # on the virtual clock: keys that age are asked for anew
        await epp.end_one()
    # At each end hog has 3, 2 and 1 in flight, modest 0, 1 and 2.
    assert epp.went[4:] == ["modest-0", "modest-1", "hog-4"]


def fields(*structs: type[msgspec.Struct]) -> set[str]:
    return {each.encode_name for each in chain(*map(msgspec.structs.fields, structs))}


def test_every_field_is_reported() -> None:
    known = fields(FlowControlEntry, PriorityBand, FlowControlExtension, BandExtension)
    table = PAGE.partition("## How many, how large, how long")[2].partition("\n## ")[0]
    documented = set(re.findall(r"\w+", table))
    assert known - ELSEWHERE - documented == set()


@pytest.mark.parametrize(
    "kind", [FairnessPolicy, OrderingPolicy, UsageLimitPolicy, SaturationDetector]
)
def test_every_policy_is_listed(kind: type) -> None:
    types = {each.type for each in PluginRegistry.from_entry_points() if issubclass(each, kind)}
    assert types
    assert {each for each in types if f"[`{each}`](plugins/{each}.md)" not in PAGE} == set()


def test_every_outcome_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    # Nobody is turned away for any other reason than those that are listed.
    assert {*Outcome} - rows == {Outcome.REJECTED_OTHER}
