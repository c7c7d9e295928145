"""Plugin types: the origin of classes, and the errors for unavailable ones."""

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from config.graphs import FIRST, KeepAll, load, make_registry
from log_watch import watched_logs

from epp.config import ConfigError, PluginRegistry
from epp.config import registry as module
from epp.config.registry import plugin_files
from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


def test_type_registered_twice_is_refused() -> None:
    registry = make_registry()

    class Other(KeepAll):
        pass

    registry.add(KeepAll)
    with pytest.raises(ConfigError, match="'keep-all-filter' is already KeepAll"):
        registry.add(Other)


def test_package_that_cannot_be_imported_costs_its_own_plugins_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        EntryPoint("broken", "no_such_package:PLUGINS", module.ENTRY_POINTS),
        EntryPoint("whole", "epp_plugins:PLUGINS", module.ENTRY_POINTS),
    ]
    monkeypatch.setattr("epp.config.entry_points.entry_points", lambda group: found)
    with watched_logs() as logs:
        registry = PluginRegistry.from_entry_points()
    assert registry.get("queue-scorer")
    (entry,) = logs.entries
    assert entry["entry_point"] == "no_such_package:PLUGINS"


@pytest.mark.parametrize(
    "name", ["file:", "file:a.py", "file:a.txt:A", "file:a.py:not a name", "file::A"]
)
def test_file_type_of_another_form_is_refused(name: str) -> None:
    types = make_registry().prepare(load(f"plugins: [{{type: '{name}'}}]\n"))
    (problem,) = types.problems
    assert problem.path == "plugins[0].type"
    assert "is not of the form `file:PATH.py:ClassName`" in problem.message


def test_files_of_plugins_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    config = load(
        "plugins: [{type: 'file:sub/a.py:A', name: a}, {type: 'file:/etc/b.py:B', name: b},"
        " {type: 'file:sub/a.py:Other', name: c}, {type: 'file:nonsense', name: d},"
        " {type: queue-scorer}]\n",
        tmp_path,
    )
    assert plugin_files(config) == {tmp_path / "sub/a.py", Path("/etc/b.py")}


def test_fault_of_a_type_is_reported_wherever_the_type_is_used() -> None:
    types = make_registry().prepare(
        load("plugins: [{type: nope, name: a}, {type: queue-scorer}, {type: nope, name: b}]\n")
    )
    assert [problem.path for problem in types.problems] == ["plugins[0].type", "plugins[2].type"]
    assert set(types.by_name) == {"queue-scorer"}


def test_class_that_breaks_its_contract_is_refused_with_file_and_line(tmp_path: Path) -> None:
    source = (Path(__file__).parent / "spot_filter.txt").read_text()
    (tmp_path / "spot.py").write_text(source.replace("    def filter", "    async def filter"))
    types = make_registry().prepare(
        load("plugins: [{type: 'file:spot.py:SpotFilter'}]\n", tmp_path)
    )
    (problem,) = types.problems
    assert f"{tmp_path}/spot.py:20" in problem.message
    assert "filter" in problem.message


@pytest.mark.parametrize(
    ("name", "parameters", "paths"),
    [
        ("keep-all-filter", {}, []),
        ("keep-all-filter", {"size": "x", "other": 1}, ["parameters.size", "parameters.other"]),
        ("nope", {}, ["type"]),
        ("openai-parser", {}, []),
        # The reference ignores parameters of parsers.
        ("openai-parser", {"a": 1}, []),
        ("by-label-selector", {"matchLabels": 3}, ["parameters.matchLabels"]),
    ],
)
def test_plugin_of_a_refused_file_is_inspected(
    name: str, parameters: dict[str, object], paths: list[str]
) -> None:
    faults = make_registry().inspector(Path())(name, parameters)
    assert [fault.path for fault in faults] == paths


class Nameless(Filter):
    """Has no type."""

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return []


NO_PLUGINS = [Nameless, "queue-scorer", 3]


def test_what_is_no_plugin_in_an_installed_package_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        EntryPoint("odd", f"{__name__}:NO_PLUGINS", module.ENTRY_POINTS),
        EntryPoint("whole", "epp_plugins:PLUGINS", module.ENTRY_POINTS),
    ]
    monkeypatch.setattr("epp.config.entry_points.entry_points", lambda group: found)
    with watched_logs() as logs:
        registry = PluginRegistry.from_entry_points()
    assert registry.get("queue-scorer")
    assert [line["entry"] for line in logs.entries] == [repr(each) for each in NO_PLUGINS]


def test_installed_plugin_with_a_fault_is_the_default_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KeepAll, "default_for", 5, raising=False)
    registry = make_registry()
    assert registry.default_for(FIRST) == "first-producer"
    with pytest.raises(ConfigError, match="`default_for` must be a tuple of keys"):
        registry.installed("keep-all-filter")
