"""``epp plugins`` on the command line."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from epp.cli import cli
from epp.cli.plugins import KINDS
from epp.config import PluginRegistry
from epp.flow_control.session_plugins import installed_builders
from epp.scheduling import Filter

pytestmark = pytest.mark.integration

PLUGIN = '''
"""``spot``: keeps spot servers.

More of it.

Example::

    plugins:
      - type: spot
"""
from typing import Annotated, Literal

import msgspec
from epp.request_control.plugins import DataProducer
from epp.scheduling import CompositeFilter, StateKey

class Inner(msgspec.Struct):
    x: int
    """How far."""

def broken():
    raise ValueError("SPOT is wrong")

class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters."""

    must_be: str
    """What it
    must be."""
    share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.5
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    limits: dict[str, Annotated[int, msgspec.Meta(gt=0)]] = {}
    inner: Inner | None = None
    from_environment: int = msgspec.field(default_factory=broken)

class Spot(CompositeFilter, DataProducer):
    """Keeps ``spot`` servers.

    Further lines.
    """

    reads = (StateKey("needed"),)
    writes = (StateKey("made"),)

    def __init__(self, name: str, params: Params): self.name = name
    def filter_with(self, request, endpoints, state, run): return endpoints
    def prepare(self, request, state): pass
'''


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(width=150, highlight=False)
    monkeypatch.setattr(import_module("epp.cli.plugins"), "console", console)


def epp(*args: str) -> Result:
    return CliRunner().invoke(cli, ["plugins", *args])


@pytest.fixture
def spot(tmp_path: Path) -> str:
    (tmp_path / "spot.py").write_text(PLUGIN.strip())
    return f"file:{tmp_path / 'spot.py'}:Spot"


def documented(*args: str) -> Any:
    done = epp(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_list_has_every_installed_type_under_its_role() -> None:
    done = epp("list")
    assert done.exit_code == 0
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    role_of: dict[str, str] = {}
    role = ""
    for line in filter(None, lines):
        if not line.startswith(" "):
            role = line
        elif not line.startswith("   "):  # else the rest of a sentence
            role_of[line.split()[0]] = role
    types = [plugin.type for plugin in PluginRegistry.from_entry_points()]
    sessions = installed_builders().names
    assert sorted(role_of) == sorted([*types, *sessions])
    assert {role_of[name] for name in sessions} == {"Session plugins"}
    assert (role_of["queue-scorer"], role_of["file-discovery"]) == ("Scorers", "Data layer")
    assert role_of["utilization-detector"] == "Saturation detectors"  # a filter, too
    (line,) = [line for line in lines if line.startswith("  queue-scorer ")]
    assert line.endswith("  Prefers endpoints with a short waiting queue.")


def test_the_list_as_json_is_sorted_and_whole() -> None:
    docs = documented("list")
    types = [doc["type"] for doc in docs]
    assert types == sorted(types)
    assert {"queue-scorer", "max-score-picker", "file-discovery"} <= set(types)
    assert all(doc["summary"] and doc["extensionPoints"] and doc["doc"] for doc in docs)


def test_the_list_leaves_out_what_cannot_be_used_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unfinished(Filter):
        type = "unfinished-filter"

    registry = PluginRegistry([Unfinished, *PluginRegistry.from_entry_points()])
    monkeypatch.setattr(PluginRegistry, "from_entry_points", lambda: registry)
    done = epp("list")
    assert done.exit_code == 1
    assert " queue-scorer " in done.stdout
    assert "unfinished-filter" not in done.stdout
    assert "Unfinished.filter: Filter needs the method" in done.stderr


def test_an_installed_plugin_is_shown_with_its_parameters_and_example() -> None:
    done = epp("show", "prefix-cache-scorer")
    assert done.exit_code == 0
    assert "prefix-cache-scorer (Scorer)" in done.stdout
    assert "epp_plugins.scorers.prefix_cache.PrefixCacheScorer" in done.stdout
    assert "matchLengthWeight" in done.stdout
    assert "reads: prefix-matches" in done.stdout
    assert "parameters: {matchLengthWeight: 0.25}" in done.stdout


def test_a_session_plugin_is_shown_with_its_arguments() -> None:
    doc = documented("show", "spot-instance-manager")
    assert (doc["role"], doc["extensionPoints"]) == ("Session plugins", ["SessionPlugin"])
    assert doc["summary"] == "Keeps jobs that must not be interrupted off spot instances."
    assert doc["doc"].startswith(f"{doc['summary']}\n\n::\n\n    score = ")
    assert [(each["name"], each["type"], each["default"]) for each in doc["parameters"]] == [
        ("spotLabelKey", "string", '"kai.scheduler/instance-type"'),
        ("spotLabelValue", "string", '"spot"'),
        ("nonSpotScore", "number", "1000"),
    ]
    assert "  nonSpotScore (number, default 1000)" in epp("show", "spot-instance-manager").stdout


def test_of_several_session_plugins_in_a_module_each_has_its_own_words_first() -> None:
    doc = documented("show", "leader-first")["doc"]
    assert doc.startswith("Orders the leaders of a job before its other tasks.\n\n``priority``, ")


SESSION_PLUGIN = """
from epp.flow_control.sessions import SessionPlugin

class Mine(SessionPlugin):
    "Mine."
    name = "mine"
    def __init__(self, arguments):
        if not arguments.get_str("must"):
            raise ValueError("must is missing")
"""


def test_a_session_plugin_with_getters_is_shown_without_parameters(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SESSION_PLUGIN)
    doc = documented("show", f"file:{tmp_path / 'mine.py'}:Mine")
    assert (doc["type"], doc["className"]) == ("mine", f"{tmp_path / 'mine.py'}:Mine")
    assert doc["parameters"] == []


def test_a_session_plugin_without_a_name_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SESSION_PLUGIN.replace('name = "mine"', ""))
    done = epp("show", f"file:{tmp_path / 'mine.py'}:Mine")
    assert done.exit_code == 1
    assert "it has no `name`; give it one" in done.stderr


def test_a_plugin_without_parameters_says_so() -> None:
    assert "It takes no parameters." in epp("show", "queue-scorer").stdout


def test_a_plugin_in_a_file_is_documented_out_of_its_source(spot: str) -> None:
    doc = documented("show", spot)
    assert doc["type"] == "spot"
    assert f"file:{doc['className']}" == spot
    assert doc["extensionPoints"] == ["CompositeFilter", "DataProducer"]
    assert doc["summary"] == "Keeps spot servers."
    assert doc["doc"] == "Keeps spot servers.\n\nMore of it."
    assert doc["example"] == "plugins:\n  - type: spot"
    assert (doc["reads"], doc["writes"]) == (["needed"], ["made"])
    parameters = {each["name"]: each for each in doc["parameters"]}
    assert parameters["mustBe"] == {
        "name": "mustBe",
        "type": "string",
        "default": None,
        "range": "",
        "doc": "What it must be.",
    }
    assert {name: each["type"] for name, each in parameters.items()} == {
        "mustBe": "string",
        "share": "number",
        "kind": "string",
        "names": "list of strings",
        "limits": "map of integers",
        "inner": "object or null",
        "inner.x": "integer",
        "fromEnvironment": "integer",
    }
    assert {name: each["range"] for name, each in parameters.items() if each["range"]} == {
        "share": "at least 0, below 1",
        "kind": "`a` or `b`",
        "limits": "each above 0",
    }
    assert parameters["inner.x"]["doc"] == "How far."
    assert {name: each["default"] for name, each in parameters.items()} == {
        "mustBe": None,
        "share": "0.5",
        "kind": '"a"',
        "names": "[]",
        "limits": "{}",
        "inner": "null",
        "inner.x": None,
        "fromEnvironment": "invalid: SPOT is wrong",
    }


def test_a_plugin_in_a_file_is_shown_as_text(spot: str) -> None:
    done = epp("show", spot)
    assert done.exit_code == 0
    assert "  mustBe (string, must be given)" in done.stdout
    assert "      What it must be." in done.stdout
    assert "  share (number, at least 0, below 1, default 0.5)" in done.stdout
    assert "  inner.x (integer, must be given)" in done.stdout


@pytest.mark.parametrize(
    ("plugin_type", "want"),
    [
        ("queue-scorrer", "did you mean `queue-scorer`?"),
        ("file:nowhere.py:Spot", "cannot read the plugin file: no such file or directory"),
        ("file:nowhere", "is not of the form `file:PATH.py:ClassName`"),
    ],
)
def test_what_cannot_be_found_is_reported(plugin_type: str, want: str) -> None:
    done = epp("show", plugin_type)
    assert done.exit_code == 1
    assert want in done.stderr
    assert done.stdout == ""


def test_all_faults_of_a_class_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "spot.py"
    path.write_text("from epp.scheduling import Filter\nclass Spot(Filter):\n    reads = 3\n")
    done = epp("show", f"file:{path}:Spot")
    assert done.exit_code == 1
    assert f"{path}:2: Spot.filter: Filter needs the method" in done.stderr
    assert f"{path}:2: Spot.__init__: its first arguments must be" in done.stderr
    assert f"{path}:2: Spot: `reads` must be a tuple of keys" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_can_be_loaded_and_shown(tmp_path: Path, kind: str) -> None:
    done = epp("new", f"my-own-{kind}", "--kind", kind, "--directory", str(tmp_path))
    assert done.exit_code == 0, done.output
    stem = f"my_own_{kind}".replace("-", "_")
    class_name = "".join(word.capitalize() for word in stem.split("_"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{stem}.py", f"test_{stem}.py"]
    assert "xample" not in (tmp_path / f"{stem}.py").read_text().replace("Example::", "")
    shown = f"file:{tmp_path / stem}.py:{class_name}"
    assert documented("show", shown)["type"] == f"my-own-{kind}"
    assert f"epp plugins show {shown}" in done.stdout
    assert documented("show", shown)["example"]


def warnings_of(config: Path) -> list[str]:
    """Check a configuration without errors; return what it is warned of."""
    done = CliRunner().invoke(cli, ["config", "check", str(config)])
    assert done.exit_code == 0, done.output
    *warnings, ok = done.output.splitlines()
    assert ok.startswith("ok: ")
    return warnings


# An extractor needs a parameter and a source, a stage decider a handler: they stand in its example.
@pytest.mark.parametrize("kind", sorted({*KINDS} - {"extractor", "stage-decider"}))
def test_what_is_said_of_the_use_of_a_new_plugin_is_a_configuration(
    tmp_path: Path, kind: str
) -> None:
    done = epp("new", "mine", "--kind", kind, "--directory", str(tmp_path))
    said = done.stdout.partition("example):\n\n")[2]
    config = tmp_path / "config.yaml"
    config.write_text(f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{said}")
    named = f"- type: file:{tmp_path / 'mine.py'}:Mine\n  name: mine\n"
    if kind == "session-plugin":
        named = f"  sessions:\n    plugins:\n      file:{tmp_path / 'mine.py'}:Mine: {{}}\n"
    assert named in said
    assert ("- pluginRef: mine\n" in said) is (kind in {"filter", "parser", "picker", "scorer"})
    assert not warnings_of(config)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_of_a_new_plugin_is_a_configuration(tmp_path: Path, kind: str) -> None:
    assert epp("new", "mine", "--kind", kind, "--directory", str(tmp_path)).exit_code == 0
    example = documented("show", f"file:{tmp_path / 'mine.py'}:Mine")["example"]
    config = tmp_path / "config.yaml"
    config.write_text(f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{example}\n")
    assert not warnings_of(config)


def test_the_tests_of_new_plugins_pass(tmp_path: Path) -> None:
    for kind in KINDS:
        assert epp("new", f"my-{kind}", "--kind", kind, "--directory", str(tmp_path)).exit_code == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("there", ["mine.py", "test_mine.py"])
def test_a_file_that_is_there_is_left_alone(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    done = epp("new", "mine", "--kind", "filter", "--directory", str(tmp_path))
    assert done.exit_code == 2
    assert f"{tmp_path / there} is there already" in done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("args", "want"),
    [
        (("spot", "--kind", "filtre"), "--kind must be one of admitter, data-producer, "),
        (("Spot_1", "--kind", "filter"), "lower-case words and hyphens, such as spot-filter"),
        (("spot", "--kind", "filter", "--directory", "/nowhere"), "there is no such folder"),
    ],
)
def test_a_wrong_order_for_a_new_plugin_is_refused(args: tuple[str, ...], want: str) -> None:
    done = epp("new", *args)
    assert done.exit_code == 2
    assert want in done.stderr
