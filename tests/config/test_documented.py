"""docs/configuration.md agrees with the code."""

import re
from pathlib import Path

import msgspec
import pytest

from epp.building import make_builder
from epp.config import ConfigFile, load_text
from epp.config.schema import DataLayerEntry, FlowControlEntry
from epp.config.supported import FEATURE_GATES

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)
CONFIGS = [block for block in BLOCKS if "kind: EndpointPickerConfig" in block]


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("text", CONFIGS, ids=range(len(CONFIGS)))
def test_documented_configuration_is_built(text: str) -> None:
    graph = make_builder().build(load_text(text, "docs"))
    assert (graph.config.warnings, graph.warnings) == ((), ())


def test_configurations_were_found() -> None:
    assert len(CONFIGS) == 2


@pytest.mark.parametrize("struct", [ConfigFile, DataLayerEntry, FlowControlEntry])
def test_every_field_of_a_section_is_documented(struct: type[msgspec.Struct]) -> None:
    said = section("Sections")
    for field in msgspec.structs.fields(struct):
        assert re.search(rf"[`.]{field.encode_name}\b", said), field.encode_name


def test_every_feature_gate_is_documented() -> None:
    assert all(f"`{gate}`" in section("Sections") for gate in FEATURE_GATES)


def test_the_reference_of_plugins_is_linked() -> None:
    assert "(plugins/README.md)" in section("Plugins")
