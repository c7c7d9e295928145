"""``epp config``: checks, output, the editor schema, and the effect of a reload."""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from config.graphs import HEAD
from typer.testing import CliRunner, Result

from epp.cli import cli
from epp.cli.editor_schema import editor_schema
from epp.config import DEFAULT_CONFIG, PluginRegistry
from epp.config.plugin_files import load_plugin_file
from epp.config.supported import DEFAULT_PARSERS

SAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "config").glob("*.yaml"))


def epp(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, ["config", *map(str, args)])


def written(folder: Path, text: str, name: str = "epp.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("command", ["check", "show", "schema", "diff"])
def test_help_says_what_the_command_does(command: str) -> None:
    done = epp(command, "--help")
    assert done.exit_code == 0
    assert f"config {command}" in done.output


def test_sound_file_is_counted(tmp_path: Path) -> None:
    # What defaulting adds (a picker, a handler, parsers ...) is not counted.
    done = epp("check", written(tmp_path, DEFAULT_CONFIG))
    assert (done.exit_code, done.output) == (0, "ok: 5 plugins, 1 profile\n")


def test_several_files_are_checked_and_a_faulty_one_keeps_no_other_from_it(tmp_path: Path) -> None:
    sound, faulty = written(tmp_path, DEFAULT_CONFIG), tmp_path / "faulty.yaml"
    faulty.write_text(HEAD + "plugins: [{type: queue-scorrer}]\n")
    done = epp("check", faulty, sound)
    assert done.exit_code == 1
    first, last = done.output.splitlines()
    assert first.startswith(f"{faulty}:3:18: plugins[0].type: unknown plugin type")
    assert last == f"{sound}: ok: 5 plugins, 1 profile"
    assert epp("check", sound, sound).exit_code == 0


def test_an_experimental_type_is_a_warning_until_it_is_allowed(tmp_path: Path) -> None:
    text = HEAD + "plugins: [{type: agent-identity}]\n"
    path = written(tmp_path, text)
    done = epp("check", path)
    assert done.exit_code == 0
    assert done.output.splitlines()[0] == (
        f"{path}:3:18: plugins[0].type: warning: this is the experimental (Alpha) plugin type"
        " `agent-identity`; allow it with the flag --allow-experimental-plugins or with"
        " `extensions.allowExperimentalPlugins: true`"
    )
    allowed = written(tmp_path, text + "extensions: {allowExperimentalPlugins: true}\n")
    assert epp("check", allowed).output == "ok: 1 plugin, 0 profiles\n"


def test_equal_files_are_said_to_be_equal(tmp_path: Path) -> None:
    path = written(tmp_path, DEFAULT_CONFIG)
    assert epp("diff", path, path).output.splitlines()[-1] == (
        "no difference: loading it changes nothing"
    )


def test_warnings_are_reported_and_do_no_harm(tmp_path: Path) -> None:
    path = written(tmp_path, DEFAULT_CONFIG + "parser: {pluginRef: openai-parser}\n")
    done = epp("check", path)
    assert (done.exit_code, done.output.splitlines()) == (
        0,
        [
            f"{path}:20:1: parser: warning: is deprecated; use `requestHandler.parsers`",
            "ok: 5 plugins, 1 profile",
        ],
    )


def test_warnings_of_the_wiring_are_reported_too(tmp_path: Path) -> None:
    text = (
        "plugins: [{type: random-picker}]\nschedulingProfiles:\n- name: a\n"
        "  plugins: [{pluginRef: random-picker, weight: 2}]\n"
    )
    path = written(tmp_path, HEAD + text)
    done = epp("check", path)
    assert done.exit_code == 0
    assert done.output.startswith(f"{path}:6:48: schedulingProfiles[0].plugins[0].weight: warning:")


def test_warnings_of_plugins_about_their_parameters_are_reported_too(tmp_path: Path) -> None:
    text = (
        "plugins:\n- type: core-metrics-extractor\n  parameters:\n"
        "    engineConfigs: [{name: mine}]\n"
    )
    path = written(tmp_path, HEAD + text)
    done = epp("check", path)
    assert done.exit_code == 0
    assert f"{path}:6:5: plugins[0].parameters: warning: `core-metrics-extractor`" in done.output
    assert "engine 'mine' is not built in and names no metric" in done.output


def test_all_problems_are_reported_one_a_line(tmp_path: Path) -> None:
    text = """\
featureGates: [flowcontrol]
plugins:
- type: queue-scorrer
- type: prefix-cache-scorer
  parameters:
    matchLengthWeight: 3
    maxLength: 1
- type: latency-scorer
- type: openai-parser
"""
    path = written(tmp_path, HEAD + text)
    done = epp("check", path)
    assert (done.exit_code, done.output.splitlines()) == (
        1,
        [
            (
                f"{path}:3:16: featureGates[0]: unknown feature gate `flowcontrol`; did you mean"
                " `flowControl`?"
            ),
            (
                f"{path}:5:9: plugins[0].type: unknown plugin type `queue-scorrer`; did you mean"
                " `queue-scorer`?"
            ),
            f"{path}:8:24: plugins[1].parameters.matchLengthWeight: expected a number <= 1.0",
            (
                f"{path}:9:5: plugins[1].parameters.maxLength: unknown field `maxLength`; known:"
                " `matchLengthScaleTokens`, `matchLengthWeight`, `prefixMatchInfoProducerName`"
            ),
            (
                f"{path}:10:9: plugins[2].type: plugin type `latency-scorer` is not supported yet;"
                " remove what uses it"
            ),
        ],
    )


def test_problems_of_plugins_alone_are_reported_the_same_way(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "plugins:\n- type: queue-scorrer\n- type: latency-scorer\n")
    done = epp("check", path)
    assert (done.exit_code, done.output.splitlines()) == (
        1,
        [
            (
                f"{path}:4:9: plugins[0].type: unknown plugin type `queue-scorrer`; did you mean"
                " `queue-scorer`?"
            ),
            (
                f"{path}:5:9: plugins[1].type: plugin type `latency-scorer` is not supported"
                " yet; remove what uses it"
            ),
        ],
    )


PLUGIN = '''\
"""Every endpoint."""

from collections.abc import Sequence

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """None."""


class AllFilter(Filter):
    """Keeps all endpoints."""

    type = "all-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        return list(endpoints)
'''


def test_plugin_in_a_file_is_found_beside_the_configuration(tmp_path: Path) -> None:
    written(tmp_path, PLUGIN, "all.py")
    path = written(tmp_path, HEAD + "plugins: [{type: 'file:all.py:AllFilter', name: all}]\n")
    assert epp("check", path).exit_code == 0
    written(tmp_path, PLUGIN.replace("def filter(", "async def filter("), "all.py")
    done = epp("check", path)
    assert done.exit_code == 1
    assert done.output.startswith(f"{path}:3:18: plugins[0].type: ")
    assert "all.py" in done.output


@pytest.mark.parametrize(
    "args", [("check",), ("show",), ("diff", "a.yaml")], ids=lambda args: args[0]
)
def test_file_that_is_not_there_is_named(tmp_path: Path, args: tuple[str, ...]) -> None:
    path = tmp_path / "none.yaml"
    done = epp(*args, path)
    assert done.exit_code == 1
    assert "cannot read the configuration file" in done.output


def test_default_configuration_is_shown_with_what_is_added() -> None:
    done = epp("show")
    assert done.exit_code == 0
    value = yaml.safe_load(done.output)
    assert [entry["name"] for entry in value["plugins"]] == [
        "queue-scorer",
        "kv-cache-utilization-scorer",
        "prefix-cache-scorer",
        "metrics-data-source",
        "core-metrics-extractor",
        "max-score-picker",
        "single-profile-handler",
        "utilization-detector",
        *DEFAULT_PARSERS,
        "approx-prefix-cache-producer",
        "token-producer",
    ]
    assert value["schedulingProfiles"][0]["plugins"][-1] == {"pluginRef": "max-score-picker"}
    assert value["requestHandler"] == {"parsers": [{"pluginRef": each} for each in DEFAULT_PARSERS]}
    assert "extensions" not in value  # so that the reference accepts it


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_what_is_shown_of_a_sample_means_the_same(path: Path, tmp_path: Path) -> None:
    shown = epp("show", path)
    assert shown.exit_code == 0
    again = written(tmp_path, shown.output)
    assert epp("show", again).output == shown.output
    changed = [line for line in epp("diff", path, again).output.splitlines() if line[:4] != "kept"]
    assert changed == ["no difference: loading it changes nothing"]


def test_extensions_are_shown_where_they_say_something(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "extensions: {guardRails: {disableAfter: 3}}\n")
    value = yaml.safe_load(epp("show", path).output)
    assert value["extensions"]["guardRails"]["disableAfter"] == 3


def test_session_plugins_are_checked_and_shown_as_the_file_has_them(tmp_path: Path) -> None:
    arguments = {"leaderLabel": "rank", "leaderValue": None}
    text = yaml.safe_dump(
        {"extensions": {"sessions": {"plugins": {"leader-first": {"arguments": arguments}}}}}
    )
    shown = epp("show", written(tmp_path, HEAD + text)).output
    assert yaml.safe_load(shown)["extensions"]["sessions"] == {
        "actions": ["allocate"],
        "plugins": {"leader-first": {"enabled": True, "priority": 0, "arguments": arguments}},
    }
    assert epp("show", written(tmp_path, shown)).output == shown
    faulty = written(tmp_path, shown.replace("leader-first", "leader-fist"))
    done = epp("check", faulty)
    assert done.exit_code == 1
    assert "there is no session plugin 'leader-fist'; did you mean 'leader-first'?" in done.output


CONFIGURING = """
from epp.flow_control.sessions import SessionPlugin


class Mine(SessionPlugin):
    name = "mine"

    def __init__(self, arguments):
        pass

    def on_configure(self, dispatcher):
        {}
"""


@pytest.mark.parametrize(
    ("does", "expected"),
    [
        pytest.param(
            "1 / 0",
            "session plugin 'mine' failed in on_configure: ZeroDivisionError: division by zero",
            id="raises",
        ),
        pytest.param(
            "dispatcher.add_http_handler('/', dict)",
            "session plugin 'mine' cannot provide the path '/'",
            id="registers where none can be",
        ),
    ],
)
def test_session_plugins_that_cannot_configure_themselves_are_refused(
    tmp_path: Path, does: str, expected: str
) -> None:
    (tmp_path / "mine.py").write_text(CONFIGURING.format(does))
    sessions = "extensions:\n  sessions:\n    plugins:\n      file:mine.py:Mine: {}\n"
    path = written(tmp_path, f"{HEAD}featureGates: [flowControl]\n{sessions}")
    done = epp("check", path)
    assert done.exit_code == 1
    (line,) = done.output.splitlines()
    assert line.startswith(f"{path}:6:5: extensions.sessions.plugins: {expected}")
    (tmp_path / "mine.py").write_text(CONFIGURING.format("pass"))
    assert epp("check", path).output.startswith("ok: ")


def test_parameters_are_shown_as_the_file_has_them(tmp_path: Path) -> None:
    entry = "{type: by-label, parameters: {label: a, validValues: [b], allowsNoLabel: null}}"
    shown = yaml.safe_load(epp("show", written(tmp_path, f"{HEAD}plugins: [{entry}]\n")).output)
    assert shown["plugins"][0]["parameters"] == {
        "label": "a",
        "validValues": ["b"],
        "allowsNoLabel": None,
    }


def test_fault_of_a_shown_file_goes_to_standard_error(tmp_path: Path) -> None:
    done = epp("show", written(tmp_path, HEAD + "plugins: 3\n"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "plugins: expected a list, got `3`" in done.stderr


def test_diff_says_what_becomes_of_each_plugin_and_why(tmp_path: Path) -> None:
    before = "plugins: [{type: queue-scorer}, {type: random-picker}, {type: by-label, name: gpu,"
    before += " parameters: {label: gpu, validValues: [h100]}}]\n"
    after = before.replace("h100", "h200").replace("queue-scorer", "lora-affinity-scorer")
    done = epp("diff", written(tmp_path, HEAD + before, "a"), written(tmp_path, HEAD + after, "b"))
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "added    lora-affinity-scorer: not there before",
        "kept     random-picker: nothing that makes it up has changed",
        "rebuilt  gpu: its parameters have changed",
        "kept     single-profile-handler: nothing that makes it up has changed",
        "kept     utilization-detector: nothing that makes it up has changed",
        "kept     metrics-data-source: nothing that makes it up has changed",
        "kept     core-metrics-extractor: nothing that makes it up has changed",
        *(f"kept     {each}: nothing that makes it up has changed" for each in DEFAULT_PARSERS),
        "removed  queue-scorer: not there any more",
        "changed  schedulingProfiles",
    ]


@cache
def schema() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(epp("schema").output)
    return value


def refs(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from refs(each)
    elif isinstance(value, list):
        for each in value:
            yield from refs(each)


def test_schema_refers_only_to_what_it_defines() -> None:
    value = schema()
    assert value["$ref"] == "#/$defs/ConfigFile"
    assert {ref.removeprefix("#/$defs/") for ref in refs(value)} == set(value["$defs"])


def test_schema_knows_every_section_strictly() -> None:
    root = schema()["$defs"]["ConfigFile"]
    assert root["additionalProperties"] is False
    assert root["required"] == ["apiVersion", "kind"]
    for path in SAMPLES:
        assert set(yaml.safe_load(path.read_text())) <= set(root["properties"])


def test_schema_ties_parameters_to_the_type_of_the_plugin() -> None:
    value = schema()
    entry = value["$defs"]["PluginEntry"]
    by_type = {
        case["if"]["properties"]["type"]["const"]: case["then"]["properties"]["parameters"]
        for case in entry["allOf"]
    }
    assert {plugin.type for plugin in PluginRegistry.from_entry_points()} < set(by_type)
    assert by_type["tokenizer"] == by_type["token-producer"]
    (ref, null) = by_type["prefix-cache-scorer"]["anyOf"]
    assert null == {"type": "null"}
    params = value["$defs"][ref["$ref"].removeprefix("#/$defs/")]
    assert params["properties"]["matchLengthWeight"]["maximum"] == 1.0
    names, in_file = entry["properties"]["type"]["anyOf"]
    assert set(names["enum"]) == by_type.keys()
    assert re.search(in_file["pattern"], "file:plugins/spot.py:SpotFilter")
    assert not re.search(in_file["pattern"], "file:spot.py")


def test_schema_speaks_in_the_words_of_the_docstrings() -> None:
    definitions = schema()["$defs"]
    band = definitions["FlowControlEntry"]["properties"]["maxBytes"]
    assert band["description"] == "None or 0 for no limit."
    gates = definitions["ConfigFile"]["properties"]["featureGates"]
    assert gates["description"] == "`gate`, `gate=true` or `gate=false`."


def test_schema_takes_sound_plugins_that_are_not_installed(tmp_path: Path) -> None:
    sound = load_plugin_file(written(tmp_path, PLUGIN, "all.py"), "AllFilter").plugin
    text = PLUGIN.replace("all-filter", "faulty-filter").replace("params: Params", "params")
    faulty = load_plugin_file(written(tmp_path, text, "faulty.py"), "AllFilter").plugin
    definitions = editor_schema([faulty, sound])["$defs"]
    (case,) = definitions["PluginEntry"]["allOf"]
    assert case["if"]["properties"] == {"type": {"const": "all-filter"}}
    assert case["then"]["description"] == "Keeps all endpoints."
