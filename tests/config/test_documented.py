"""docs/configuration.md against what the code takes."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from epp.config import ConfigFile, PluginRegistry, load_text
from epp.config.plugin_checks import params_of
from epp.config.schema import DataLayerEntry, FlowControlEntry
from epp.config.supported import FEATURE_GATES, OLD_TYPES
from epp.data_layer import make_builder

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)
CONFIGS = [block for block in BLOCKS if "kind: EndpointPickerConfig" in block]
# A parameter that only an old file has.
UNDOCUMENTED = {"blockSize", "maxPrefixBlocksToMatch"}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def plugin_rows() -> Iterator[tuple[str, str]]:
    """Yield each type of the table with what is said of its parameters."""
    for first, second in re.findall(r"^\| (`.+?) \| (.+) \|$", section("Plugins"), re.M):
        for plugin_type in re.findall(r"`([^`]+)`", first):
            yield plugin_type, second


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


def test_every_installed_plugin_is_documented_once() -> None:
    installed = [plugin.type for plugin in PluginRegistry.from_entry_points()]
    assert sorted(name for name, _ in plugin_rows()) == sorted([*installed, *OLD_TYPES])


def test_every_parameter_is_documented() -> None:
    rows = dict(plugin_rows())
    for plugin in PluginRegistry.from_entry_points():
        if plugin.type == "token-producer":  # its row says which mode there is
            continue
        for field in msgspec.structs.fields(params_of(plugin)):
            if field.encode_name not in UNDOCUMENTED:
                assert f"`{field.encode_name}" in rows[plugin.type], field.encode_name
