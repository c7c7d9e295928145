"""``extensions.sessions``: from a configuration to the plugins and actions of its sessions."""

import re
from pathlib import Path

import pytest
from config.graphs import load

from epp.building import make_builder
from epp.config import ConfigError, PluginGraph, load_file, load_text
from epp.config.registry import plugin_files
from epp.flow_control.session_plugins import SessionPlan, session_plan
from epp_plugins.session_plugins.proportion import Proportion

BUILDER = make_builder(seed=0)

PLUGIN = """\
from epp.flow_control.sessions import Arguments, SessionPlugin

class Mine(SessionPlugin):
    name = "mine"

    def __init__(self, arguments: Arguments) -> None:
        self.size = arguments.get_int("size", 1)
        if self.size < 0:
            raise ValueError("a size below 0")

class Double(SessionPlugin):
    name = "priority"

    def __init__(self, arguments: Arguments) -> None: ...
"""


def sessions(plugins: str, actions: str = "") -> str:
    """Return a configuration with these plugins, one per line from line 5."""
    return f"extensions:\n  sessions: {{{actions} plugins: {{\n{plugins}\n  }}}}\n"


def build(text: str, directory: Path = Path(), previous: PluginGraph | None = None) -> PluginGraph:
    return BUILDER.build(load(text, directory), previous)


def plan(text: str, directory: Path = Path()) -> SessionPlan:
    return session_plan(build(text, directory))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(PLUGIN)
    return tmp_path


def test_a_configuration_without_sessions_has_no_plugins_and_allocates() -> None:
    assert plan("") == SessionPlan(plugins=(), actions=("allocate",))


def test_plugins_are_built_in_the_order_of_their_priority(folder: Path) -> None:
    text = sessions(
        "priority: {}, node-spread: {enabled: false}, proportion: {priority: 5},\n"
        '"file:mine.py:Mine": {priority: 9, arguments: {size: 7}}, leader-first: {}',
        "actions: [reclaim, allocate],",
    )
    made = plan(text, folder)
    assert [each.name for each in made.plugins] == [
        "mine",
        "proportion",
        "leader-first",
        "priority",
    ]
    assert vars(made.plugins[0]) == {"size": 7}
    assert isinstance(made.plugins[1], Proportion)
    assert made.actions == ("reclaim", "allocate")


FAULTS = {
    "unknown plugin": (
        "proprtion: {}",
        ["5:1: …proprtion: there is no session plugin 'proprtion'; did you mean 'proportion'?"],
    ),
    "unknown plugin that is not enabled": (
        "proprtion: {enabled: false}",
        ["5:1: …proprtion: there is no session plugin 'proprtion'; did you mean 'proportion'?"],
    ),
    "arguments of two plugins": (
        (
            "leader-first: {arguments: {leadLabel: a}},\n"
            "spot-instance-manager: {arguments: {nonSpotScore: much}}"
        ),
        [
            (
                "5:28: …leader-first.arguments.leadLabel: session plugin 'leader-first': unknown"
                " argument 'leadLabel'; it takes: leaderLabel, leaderValue"
            ),
            (
                "6:51: …spot-instance-manager.arguments.nonSpotScore: session plugin"
                " 'spot-instance-manager': argument 'nonSpotScore' is 'much'; it must be a finite"
                " number"
            ),
        ],
    ),
    "builder that raises": (
        '"file:mine.py:Mine": {arguments: {size: -1}}',
        [
            (
                "5:1: …[\"file:mine.py:Mine\"]: session plugin 'file:mine.py:Mine' cannot be built:"
                " ValueError: a size below 0"
            )
        ],
    ),
    "two of one name": (
        '"file:mine.py:Double": {}, priority: {}',
        ["5:28: …priority: there are two session plugins named 'priority'; rename one"],
    ),
    "file that is not there": (
        '"file:gone.py:Mine": {}',
        [
            (
                '5:1: …["file:gone.py:Mine"]: FOLDER/gone.py: cannot read the plugin file: no such'
                " file or directory"
            )
        ],
    ),
    "class that is not there": (
        '"file:mine.py:Yours": {}',
        [
            (
                "5:1: …[\"file:mine.py:Yours\"]: FOLDER/mine.py: there is no class 'Yours' in it;"
                " its plugins: Mine, Double"
            )
        ],
    ),
    "class that is none": (
        '"file:mine.py:Arguments": {}',
        [
            (
                "5:1: …[\"file:mine.py:Arguments\"]: FOLDER/mine.py: class 'Arguments' is imported"
                " from epp.flow_control.sessions.arguments; name it by its own file or type"
            )
        ],
    ),
    "file without a class": (
        '"file:mine.py": {}',
        [
            (
                '5:1: …["file:mine.py"]: plugin type `file:mine.py` is not of the form'
                " `file:PATH.py:ClassName`"
            )
        ],
    ),
}


@pytest.mark.parametrize(("plugins", "said"), FAULTS.values(), ids=FAULTS)
def test_every_fault_is_reported_with_its_place(
    plugins: str, said: list[str], folder: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        build(sessions(plugins), folder)
    lines = str(caught.value).replace(str(folder), "FOLDER").splitlines()
    path = "extensions.sessions.plugins."
    assert lines == ["test.yaml:" + each.replace("…", path).replace(".[", "[") for each in said]


def test_faults_of_sessions_and_of_plugins_are_reported_together(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        build("plugins: [{type: queue-scorrer}]\n" + sessions("prioriti: {}"), folder)
    assert [each.path for each in caught.value.problems] == [
        "plugins[0].type",
        "extensions.sessions.plugins.prioriti",
    ]


def test_a_file_that_is_not_enabled_is_not_run(folder: Path) -> None:
    (folder / "mine.py").write_text("raise RuntimeError")
    text = sessions('"file:mine.py:Mine": {enabled: false}')
    assert plan(text, folder) == SessionPlan()
    assert not plugin_files(load(text, folder))


MINE = '"file:mine.py:Mine": {arguments: {size: 1}}'


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        pytest.param(sessions(MINE) + "featureGates: [flowControl=false]\n", True, id="elsewhere"),
        pytest.param(sessions(f"  {MINE} # mine"), True, id="the writing alone"),
        pytest.param(sessions(MINE.replace("1", "true")), False, id="one and true are two things"),
        pytest.param(sessions(MINE.replace("1", "2")), False, id="an argument"),
        pytest.param(sessions(MINE, "actions: [allocate, preempt],"), False, id="the actions"),
        pytest.param("", False, id="all of it is gone"),
    ],
)
def test_a_reload_keeps_what_has_not_changed(text: str, is_kept: bool, folder: Path) -> None:
    before = build(sessions(MINE), folder)
    try:
        after = build(text, folder, before)
    except ConfigError:  # true is no whole number: the plugin was asked again
        assert not is_kept
    else:
        assert (session_plan(after) is session_plan(before)) is is_kept
        assert after.version != before.version


def test_a_changed_file_makes_another_version_and_new_plugins(folder: Path) -> None:
    config = folder / "epp.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n" + sessions(MINE)
    )
    before = BUILDER.build(load_file(config))
    assert plugin_files(before.config) == {folder / "mine.py"}
    (folder / "mine.py").write_text(PLUGIN.replace('"mine"', '"ours"'))
    after = BUILDER.build(load_file(config), before)
    assert before.version != after.version
    assert [each.name for each in session_plan(before).plugins] == ["mine"]
    assert [each.name for each in session_plan(after).plugins] == ["ours"]
    # What is taken back is built of the classes that it had.
    back = BUILDER.build(before.config, after, types=before.types)
    assert [each.name for each in session_plan(back).plugins] == ["mine"]


def test_the_documented_configuration_is_built(tmp_path: Path) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text()
    (text,) = [
        block
        for block in re.findall(r"^```yaml\n(.*?)^```", documented, re.M | re.S)
        if "kind: EndpointPickerConfig" in block
    ]
    (tmp_path / "my_plugin.py").write_text(PLUGIN.replace("Mine", "MyPlugin"))
    made = session_plan(BUILDER.build(load_text(text, "docs", tmp_path)))
    assert [each.name for each in made.plugins] == ["spot-instance-manager", "mine"]
    assert made.actions == ("allocate",)
