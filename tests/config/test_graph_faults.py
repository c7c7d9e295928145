"""Errors of faulty configurations: the place, the reason and the remedy."""

from functools import wraps
from pathlib import Path

import pytest
from config.graphs import KeepAll, Params, build, load, make_builder

from epp.config import ConfigError
from epp.data_layer import DataSource, EndpointDiscovery, Extractor
from epp.scheduling import Plugin

KINDS: dict[str, type[Plugin]] = {
    "discovery": EndpointDiscovery,
    "source": DataSource,
    "extractor": Extractor,
}

TWO_PROFILES = "schedulingProfiles: [{name: a}, {name: b}]\n"

FAULTS: dict[str, tuple[str, str, str]] = {
    "unknown plugin type": (
        "plugins: [{type: queue-scorrer}]\n",
        "test.yaml:3:18: plugins[0].type",
        "unknown plugin type `queue-scorrer`; did you mean `queue-scorer`?",
    ),
    "unknown plugin type like no other": (
        "plugins: [{type: zzzzzz}]\n",
        "plugins[0].type",
        "unknown plugin type `zzzzzz`; known: `",
    ),
    "unknown plugin type that has only its role in common with others": (
        "plugins: [{type: spot-filter}]\n",
        "plugins[0].type",
        "unknown plugin type `spot-filter`; known: `",
    ),
    "plugin file without its prefix": (
        "plugins: [{type: 'sub/spot.py:SpotFilter'}]\n",
        "test.yaml:3:18: plugins[0].type",
        "unknown plugin type `sub/spot.py:SpotFilter`; did you mean `file:sub/spot.py:SpotFilter`?",
    ),
    "number for a duration": (
        "plugins: [{type: metrics-data-source, parameters: {interval: 5}}]\n",
        "test.yaml:3:62: plugins[0].parameters.interval",
        "`5` is no duration, as it has no unit; write `5s` or `5ms`",
    ),
    "number in quotes for a duration": (
        "plugins: [{type: models-data-source, parameters: {interval: '0.5'}}]\n",
        "test.yaml:3:61: plugins[0].parameters.interval",
        "`0.5` is no duration, as it has no unit; write `0.5s` or `0.5ms`",
    ),
    "plugin type of the reference that is not there yet": (
        "plugins: [{type: latency-scorer}]\n",
        "plugins[0].type",
        "`latency-scorer` is not supported yet",
    ),
    "plugin file without a class": (
        "plugins: [{type: 'file:spot.py'}]\n",
        "plugins[0].type",
        "is not of the form `file:PATH.py:ClassName`",
    ),
    "plugin file that is missing": (
        "plugins: [{type: 'file:none/spot.py:Spot'}]\n",
        "plugins[0].type",
        "none/spot.py: cannot read the plugin file",
    ),
    "plugin file with a zero byte in its path": (
        'plugins: [{type: "file:a\\0b.py:Spot"}]\n',
        "plugins[0].type",
        "cannot read the plugin file: embedded null byte",
    ),
    "unknown parameter": (
        "plugins: [{type: keep-all-filter, parameters: {sise: 1}}]\n",
        "test.yaml:3:48: plugins[0].parameters.sise",
        "did you mean `size`?",
    ),
    "parameter of the wrong type deep inside": (
        "plugins: [{type: keep-all-filter, parameters: {names: [a, 2]}}]\n",
        "test.yaml:3:59: plugins[0].parameters.names[1]",
        "got ",
    ),
    "parameter that the constructor refuses": (
        "plugins: [{type: keep-all-filter, parameters: {size: -1}}]\n",
        "test.yaml:3:47: plugins[0].parameters",
        "size must not be negative",
    ),
    "constructor with a bug": (
        "plugins: [{type: keep-all-filter, parameters: {size: 200}}]\n",
        "test.yaml:3:11: plugins[0]",
        "`keep-all-filter` cannot be made: ZeroDivisionError: division by zero (",
    ),
    "two pickers in a profile": (
        (
            "plugins: [{type: random-picker}, {type: last-picker}]\n"
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker},"
            " {pluginRef: last-picker}]}]\n"
        ),
        "test.yaml:4:22: schedulingProfiles[0]",
        "profile `a` has 2 pickers, `random-picker`, `last-picker`; keep one",
    ),
    "two pickers in the default profile": (
        "plugins: [{type: random-picker}, {type: last-picker}]\n",
        "schedulingProfiles[0]",
        "profile `default` has 2 pickers",
    ),
    "two profile handlers": (
        "plugins: [{type: single-profile-handler}, {type: single-profile-handler, name: other}]\n",
        "test.yaml:3:43: plugins[1]",
        "there are 2 profile handlers, `single-profile-handler`, `other`; keep one",
    ),
    "two profiles without a handler": (
        TWO_PROFILES,
        "test.yaml:3:21: schedulingProfiles",
        "2 profiles need a profile handler that chooses among them",
    ),
    "two profiles with the handler of one": (
        "plugins: [{type: single-profile-handler}]\n" + TWO_PROFILES,
        "plugins[0]",
        "single-profile-handler runs a sole profile; configured: ",
    ),
    "discovery that is none": (
        "plugins: [{type: queue-scorer}]\ndataLayer: {discovery: {pluginRef: queue-scorer}}\n",
        "test.yaml:4:36: dataLayer.discovery.pluginRef",
        "`queue-scorer` (queue-scorer) does not implement EndpointDiscovery",
    ),
    "source that is none": (
        "plugins: [{type: queue-scorer}]\ndataLayer: {sources: [{pluginRef: queue-scorer}]}\n",
        "dataLayer.sources[0].pluginRef",
        "does not implement DataSource",
    ),
    "source that is there twice": (
        (
            "plugins: [{type: models-data-source, name: m}]\n"
            "dataLayer: {sources: [{pluginRef: m}, {pluginRef: m}]}\n"
        ),
        "test.yaml:4:51: dataLayer.sources[1].pluginRef",
        "source `m` is listed before; list all its extractors there",
    ),
    "extractor that is none": (
        (
            "plugins: [{type: models-data-source}]\ndataLayer: {sources: [{pluginRef:"
            " models-data-source, extractors: [{pluginRef: models-data-source}]}]}\n"
        ),
        "dataLayer.sources[0].extractors[0].pluginRef",
        "does not implement Extractor",
    ),
    "failure policy of a scorer": (
        (
            "plugins: [{type: queue-scorer}]\n"
            "extensions: {guardRails: {failurePolicy: {queue-scorer: open}}}\n"
        ),
        "test.yaml:4:43: extensions.guardRails.failurePolicy.queue-scorer",
        "`queue-scorer` is no filter; only filters have a failure policy",
    ),
    "key that no plugin produces": (
        "plugins: [{type: orphan-scorer, name: lonely}]\n",
        "plugins[0]",
        "`lonely` reads `test-orphan`, which no plugin produces",
    ),
    "name of a default producer taken by another": (
        "plugins: [{type: reading-scorer}, {type: queue-scorer, name: second-producer}]\n",
        "plugins[0]",
        "`reading-scorer` reads `test-second`, which plugin `second-producer` does not write",
    ),
    "name of the default picker taken by another": (
        "plugins: [{type: queue-scorer, name: max-score-picker}]\n",
        "plugins[0]",
        "the name `max-score-picker` is needed for the default plugin of that type",
    ),
    "producers that wait for each other": (
        "plugins: [{type: circular-producer, name: a}, {type: second-producer, name: b}]\n",
        "plugins[0]",
        "plugins wait for each other's data: a -> b -> a",
    ),
    "reference to nothing": (
        "plugins: [{type: wrapping-filter, parameters: {to: nope}}]\n",
        "plugins[0].parameters",
        "refers to plugin `nope`, which is not defined",
    ),
    "reference to a plugin of another kind": (
        "plugins: [{type: wrapping-filter, parameters: {to: s}}, {type: queue-scorer, name: s}]\n",
        "plugins[0].parameters",
        "refers to plugin `s` (queue-scorer), which is no Filter",
    ),
    "references in a circle": (
        (
            "plugins: [{type: wrapping-filter, name: a, parameters: {to: b}},"
            " {type: wrapping-filter, name: b, parameters: {to: a}}]\n"
        ),
        "plugins[1].parameters",
        "plugins refer to each other in a circle: a -> b -> a",
    ),
    "reference to itself": (
        "plugins: [{type: wrapping-filter, name: a, parameters: {to: a}}]\n",
        "plugins[0].parameters",
        "plugins refer to each other in a circle: a -> a",
    ),
    "name of a shadow's twin": (
        (
            "plugins: [{type: random-picker, name: p}, {type: keep-all-filter, name: p@b}]\n"
            "schedulingProfiles: [{name: a}, {name: b, plugins: [{pluginRef: p}]}]\n"
            "extensions: {shadow: [{profile: b}]}\n"
        ),
        "plugins[1]",
        "the name `p@b` is taken for a shadow's plugin; rename it",
    ),
}


@pytest.mark.parametrize(("text", "where", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_reported_with_its_place(text: str, where: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_builder(kinds=KINDS).build(load(text))
    (line,) = [line for line in str(caught.value).splitlines() if message in line]
    assert line.startswith("test.yaml:")
    assert f"{where}: " in line


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = (
        "plugins:\n"
        "- {type: queue-scorrer}\n"
        "- {type: keep-all-filter, parameters: {sise: 1, names: 3}}\n"
        "- {type: wrapping-filter, parameters: {to: nope}}\n"
        "- {type: token-producer}\n"
        "schedulingProfiles:\n"
        "- {name: a, plugins: [{pluginRef: token-producer}, {pluginRef: keep-all-filter}]}\n"
        "extensions: {guardRails: {failurePolicy: {token-producer: open}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        build(text)
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [
        (4, "plugins[0].type"),
        (5, "plugins[1].parameters.sise"),
        (5, "plugins[1].parameters.names"),
        (6, "plugins[2].parameters"),
        (10, "extensions.guardRails.failurePolicy.token-producer"),
    ]


def test_fault_of_a_plugin_is_not_reported_again_of_those_that_refer_to_it() -> None:
    with pytest.raises(ConfigError) as caught:
        build(
            "plugins: [{type: wrapping-filter, name: a, parameters: {to: b}},"
            " {type: keep-all-filter, name: b, parameters: {size: -1}}]\n"
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: b}]}]\n"
        )
    (problem,) = caught.value.problems
    assert problem.path == "plugins[1].parameters"


def test_what_was_made_is_closed_when_the_build_fails_and_what_is_in_use_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(KeepAll, "close", lambda self: closed.append(self.name))
    in_use = build("plugins: [{type: keep-all-filter, name: kept}]\n")
    with pytest.raises(ConfigError):
        build(
            "plugins: [{type: keep-all-filter, name: kept}, {type: keep-all-filter, name: new},"
            " {type: keep-all-filter, name: bad, parameters: {size: -1}}]\n",
            in_use,
        )
    assert closed == ["new"]


SPOT = (Path(__file__).parent / "spot_filter.txt").read_text()
NAMED = "self.name = name"

ODD_PLUGINS: dict[str, tuple[str, str, str]] = {
    "forgets its name": (NAMED, "pass", "SpotFilter.__init__ must set `self.name = name`"),
    "has a name of its own": (NAMED, "self.name = 'x'", "must set `self.name = name`"),
    "reads no keys": (NAMED, f"{NAMED}; self.reads = 5", "`reads` must be a tuple of keys"),
    "writes what is no key": (
        NAMED,
        f"{NAMED}; self.writes = ([],)",
        "`writes` must be a tuple of keys",
    ),
    "ends the process": (NAMED, "raise SystemExit(3)", "cannot be made: SystemExit: 3 (/"),
    "is of another class": (
        "def __init__",
        "def __new__(cls, *_): return object()\n\n    def __init__",
        "calling SpotFilter makes a object; remove its `__new__`",
    ),
    "has a type that is no text": (
        '"""Keeps every endpoint."""',
        "type = 5",
        "`type` must be a text",
    ),
    "has parameters with a bug": (
        '"""No parameters."""',
        "def __post_init__(self): raise KeyError('HOME')",
        "reading it raised KeyError: 'HOME'",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), ODD_PLUGINS.values(), ids=ODD_PLUGINS)
def test_plugin_that_cannot_be_used_is_a_fault_of_the_configuration(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    (tmp_path / "spot.py").write_text(SPOT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        build("plugins: [{type: 'file:spot.py:SpotFilter'}]\n", directory=tmp_path)
    (problem,) = caught.value.problems
    assert problem.path.startswith("plugins[0]")
    assert message in problem.message


def test_plugin_of_the_wrong_name_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = 0

    def close(self: KeepAll) -> None:
        nonlocal closed
        closed += 1

    @wraps(KeepAll.__init__)
    def forget(self: KeepAll, name: str, params: Params) -> None:
        self.params = params

    monkeypatch.setattr(KeepAll, "__init__", forget)
    monkeypatch.setattr(KeepAll, "close", close)
    with pytest.raises(ConfigError, match=r"must set `self\.name = name`"):
        build("plugins: [{type: keep-all-filter}]\n")
    assert closed == 1


def test_what_was_made_is_closed_when_the_wiring_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    monkeypatch.setattr(KeepAll, "close", lambda self: closed.append(self.name))

    def fail(self: KeepAll) -> bool:
        raise RuntimeError("no")

    monkeypatch.setattr(KeepAll, "fails_open", property(fail))
    with pytest.raises(RuntimeError):
        build("plugins: [{type: keep-all-filter, name: new}]\n")
    assert closed == ["new"]
