"""Which plugins survive a reload, which are created again, and why."""

import gc
import sys
import weakref
from pathlib import Path

import pytest
from config.graphs import Closable, build
from structlog.testing import capture_logs

from epp.config import Fate, PluginGraph, PluginLifetimes, changes
from epp.config.instances import close_all
from epp.scheduling import Plugin

BEFORE = (
    "plugins:\n"
    "- {type: keep-all-filter, name: inner, parameters: {size: 2, names: [a, b]}}\n"
    "- {type: wrapping-filter, name: outer, parameters: {to: inner}}\n"
    "- {type: wrapping-filter, name: outermost, parameters: {to: outer}}\n"
    "- {type: random-picker, name: picker}\n"
    "schedulingProfiles: [{name: a}, {name: b, plugins: [{pluginRef: picker}]}]\n"
    "extensions: {shadow: [{profile: b}]}\n"
)
HANDLER = "single-profile-handler"
ALL = {"inner", "outer", "outermost", "picker", "picker@b", HANDLER}


def kept(before: PluginGraph, after: PluginGraph) -> set[str]:
    return {
        name
        for name, each in after.instances.items()
        if name in before.instances and before.instances[name].plugin is each.plugin
    }


@pytest.mark.parametrize(
    ("old", "new", "rebuilt"),
    [
        pytest.param("", "", set(), id="nothing changed"),
        pytest.param(
            "{size: 2, names: [a, b]}", "{names: [a, b], size: 2}", set(), id="order of keys"
        ),
        pytest.param("name: picker}", "name: picker, parameters: {}}", set(), id="no parameters"),
        pytest.param(
            "name: picker}",
            "name: picker, parameters: {maxNumOfEndpoints: 1}}",
            set(),
            id="a default written out",
        ),
        pytest.param(
            "name: picker}",
            "name: picker, parameters: {maxNumOfEndpoints: 2}}",
            {"picker", "picker@b"},
            id="a parameter, so its twin too",
        ),
        pytest.param(
            "size: 2", "size: 3", {"inner", "outer", "outermost"}, id="what others refer to"
        ),
        pytest.param(
            "type: random-picker", "type: max-score-picker", {"picker", "picker@b"}, id="a type"
        ),
        pytest.param("{name: a}", "{name: other}", set(), id="a profile"),
        pytest.param(
            "- {type: keep-all-filter, name: inner",
            "- {type: last-picker}\n- {type: keep-all-filter, name: inner",
            set(),
            id="one more plugin",
        ),
    ],
)
def test_instance_is_kept_if_nothing_that_makes_it_up_has_changed(
    old: str, new: str, rebuilt: set[str]
) -> None:
    before = build(BEFORE)
    text = BEFORE.replace(old, new, 1) if old else BEFORE
    after = build(text, before)
    assert kept(before, after) == ALL - rebuilt
    changed = {each.name for each in changes(before, after) if each.fate is Fate.REBUILT}
    assert changed == rebuilt


def test_every_change_is_reported_with_its_reason() -> None:
    before = build(BEFORE + "featureGates: []\n")
    after = build(
        "plugins:\n"
        "- {type: keep-all-filter, name: inner, parameters: {size: 9}}\n"
        "- {type: wrapping-filter, name: outer, parameters: {to: inner}}\n"
        "- {type: queue-scorer, name: outermost}\n"
        "- {type: last-picker}\n",
        before,
    )
    assert [(each.name, each.fate, each.reason) for each in changes(before, after)] == [
        ("inner", Fate.REBUILT, "its parameters have changed"),
        ("outer", Fate.REBUILT, "it refers to `inner`, which changed"),
        ("outermost", Fate.REBUILT, "its type was `wrapping-filter` and is `queue-scorer`"),
        ("last-picker", Fate.ADDED, "not there before"),
        (HANDLER, Fate.KEPT, "nothing that makes it up has changed"),
        ("picker", Fate.REMOVED, "not there any more"),
        ("picker@b", Fate.REMOVED, "not there any more"),
    ]


def test_plugin_from_a_file_is_kept_until_the_text_of_the_file_changes(tmp_path: Path) -> None:
    text = "plugins: [{type: 'file:spot.py:SpotFilter', name: spot}]\n"
    file = tmp_path / "spot.py"
    source = (Path(__file__).parent / "spot_filter.txt").read_text()
    file.write_text(source)
    before = build(text, directory=tmp_path)
    again = build(text, before, directory=tmp_path)
    assert "spot" in kept(before, again)
    assert again.version == before.version

    file.write_text(source + "# changed\n")
    after = build(text, before, directory=tmp_path)
    assert "spot" not in kept(before, after)
    assert after.version != before.version
    (change,) = [each for each in changes(before, after) if each.name == "spot"]
    assert (change.fate, change.reason) == (Fate.REBUILT, "its source file has changed")


def test_class_of_a_plugin_file_is_forgotten_with_the_last_graph_that_has_it(
    tmp_path: Path,
) -> None:
    text = "plugins: [{type: 'file:spot.py:SpotFilter', name: spot}]\n"
    file = tmp_path / "spot.py"
    source = (Path(__file__).parent / "spot_filter.txt").read_text()
    # With a method, the parameters keep the module.
    source = source.replace('"""No parameters."""', "def __post_init__(self) -> None: ...")
    graph, classes = None, []
    for nth in range(3):
        file.write_text(source + f"# {nth}\n")
        graph = build(text, graph, directory=tmp_path)
        classes.append(weakref.ref(type(graph.plugins["spot"])))
    for _ in range(2):  # what the first pass finalizes is freed by the second
        gc.collect()
    assert [each() is None for each in classes] == [True, True, False]


def test_parameters_that_differ_in_the_sign_of_infinity_alone_are_different(
    tmp_path: Path,
) -> None:
    source = (Path(__file__).parent / "spot_filter.txt").read_text()
    source = source.replace('"""No parameters."""', "most: float = 1")
    (tmp_path / "spot.py").write_text(source)
    text = "plugins: [{type: 'file:spot.py:SpotFilter', name: spot, parameters: {most: .inf}}]\n"
    before = build(text, directory=tmp_path)
    after = build(text.replace(".inf", "-.inf"), before, directory=tmp_path)
    assert "spot" not in kept(before, after)


def closed(plugin: Plugin) -> bool:
    assert isinstance(plugin, Closable)
    return plugin.is_closed


def test_a_plugin_that_exits_when_closed_keeps_no_other_from_it() -> None:
    class Leaving(Plugin):
        type = "leaving"
        name = "leaving"

        def close(self) -> None:
            sys.exit("enough")

    other = Closable()
    with capture_logs() as logs:
        close_all([Leaving(), other])
    assert other.is_closed
    assert [(each["event"], each["plugin"]) for each in logs] == [
        ("plugin failed to close", "leaving")
    ]


def test_dropped_plugin_is_closed_after_the_last_graph_that_has_it() -> None:
    lifetimes = PluginLifetimes()
    both = "plugins: [{type: keep-all-filter, name: a}, {type: keep-all-filter, name: b}]\n"
    first = build(both)
    second = build(both.replace("name: a", "name: c"), first)
    third = build("", second)
    a, b, c = first.plugins["a"], first.plugins["b"], second.plugins["c"]
    for graph in (first, second, third):
        lifetimes.enter(graph)
    lifetimes.leave(second)  # its last request ends before the first graph's does
    assert [closed(each) for each in (a, b, c)] == [False, False, True]
    lifetimes.leave(first)
    assert [closed(each) for each in (a, b, c)] == [True, True, True]


def test_plugin_that_fails_to_close_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = build("plugins: [{type: raising-filter, name: a}, {type: keep-all-filter, name: b}]\n")
    a, b = graph.plugins["a"], graph.plugins["b"]

    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(a, "close", fail)
    lifetimes = PluginLifetimes()
    lifetimes.enter(graph)
    lifetimes.leave(graph)
    assert closed(b)
