"""Checks of the Helm chart without helm: its schema, its copies, its page."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tools.chart import values_table
from tools.chart.__main__ import main
from tools.chart.kustomize import difference, merged
from tools.chart.paths import CHART, COPIES, DEPLOY, PAGE, ROOT

FILES = sorted((Path(__file__).parent / "chart_values").glob("*.yaml"))
SCHEMA = values_table.schema()


def faults(values: dict[str, Any]) -> list[str]:
    """What the schema says of values that are merged over the chart's."""
    validator = jsonschema.Draft7Validator(SCHEMA)
    found = validator.iter_errors(merged(values_table.defaults(), values))
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


def test_the_schema_is_sound() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_every_value_is_described_in_a_sentence() -> None:
    rows = list(values_table.values())
    assert len(rows) > 150
    for row in rows:
        assert row.description[0].isupper() or row.description[0] == "`", row.path
        assert row.description.endswith("."), row.path


def test_the_defaults_are_what_the_schema_allows() -> None:
    assert faults({}) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_values_files_are_accepted(file: Path) -> None:
    assert faults(yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        pytest.param(
            {"router": {"epp": {"replica": 2}}},
            "router.epp: Additional properties are not allowed ('replica' was unexpected)",
            id="a misspelled name",
        ),
        pytest.param(
            {"routers": {}},
            ": Additional properties are not allowed ('routers' was unexpected)",
            id="a misspelled section",
        ),
        pytest.param(
            {"router": {"epp": {"replicas": 0}}},
            "router.epp.replicas: 0 is less than the minimum of 1",
            id="no replica",
        ),
        pytest.param(
            {"router": {"epp": {"extProcPort": 70000}}},
            "router.epp.extProcPort: 70000 is greater than the maximum of 65535",
            id="no port",
        ),
        pytest.param(
            {"provider": {"name": "nginx"}},
            "provider.name: 'nginx' is not one of ['none', 'istio', 'gke', 'envoy-gateway',"
            " 'kgateway']",
            id="another gateway",
        ),
        pytest.param(
            {"router": {"epp": {"flags": {"v": {"level": 4}}}}},
            "router.epp.flags.v: {'level': 4} is not of type 'string', 'number', 'boolean',"
            " 'array'",
            id="a flag that is a map",
        ),
        pytest.param(
            {"router": {"inferenceObjectives": [{"name": "chat"}]}},
            "router.inferenceObjectives.0: 'priority' is a required property",
            id="an objective without priority",
        ),
        pytest.param(
            {"inferenceExtension": {"replicas": "two"}},
            "inferenceExtension.replicas: 'two' is not of type 'integer'",
            id="the older layout is checked, too",
        ),
    ],
)
def test_other_values_are_refused(values: dict[str, Any], fault: str) -> None:
    assert faults(values) == [fault]


@pytest.mark.parametrize("name", COPIES)
def test_copies_in_the_chart_are_current(name: str) -> None:
    assert (CHART / "files" / name).read_text() == COPIES[name].read_text(), "run make docs"


def test_nothing_else_is_in_the_folder_of_copies() -> None:
    assert {path.name for path in (CHART / "files").iterdir()} == COPIES.keys()


def test_the_page_has_the_table_of_all_values() -> None:
    text = PAGE.read_text()
    assert values_table.page(text) == text, "run make docs"


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_model_servers_scale_by_the_query_of_the_sample() -> None:
    sample = (DEPLOY / "autoscaling" / "keda.yaml").read_text()
    query = re.findall(r"query: >-\n((?: {10}.+\n)+)", sample)[0]
    template = (CHART / "templates" / "modelservers.yaml").read_text()
    assert query.replace("llama", "{{ $pool }}") in template


def test_alerts_are_on_metrics_of_the_reference_page() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yaml").read_text())
    (group,) = rules["groups"]
    page = (ROOT / "docs" / "metrics.md").read_text()
    for rule in group["rules"]:
        names = re.findall(r'(\w+)\{job="epp"', rule["expr"])
        assert names, rule["alert"]
        assert all(f"`{name}" in page or name == "up" for name in names), rule["alert"]
        assert {"summary", "description", "runbook_url"} == rule["annotations"].keys()
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_every_selector_of_the_alerts_is_for_the_release() -> None:
    text = (DEPLOY / "prometheus" / "rules.yaml").read_text()
    selectors = re.findall(r"\{(\w+=[^}]*)\}", text)
    assert selectors
    assert all(each.startswith('job="epp"') for each in selectors)


def test_values_files_say_what_they_are() -> None:
    assert len(FILES) >= 25
    assert all(file.read_text().startswith("# ") for file in FILES)


def test_the_schema_is_written_as_json_tools_write_it() -> None:
    text = (CHART / "values.schema.json").read_text()
    assert text == json.dumps(SCHEMA, indent=2, ensure_ascii=False) + "\n"


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: python -m tools.chart docs|kustomize" in capsys.readouterr().err


def test_without_helm_and_go_kustomize_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHART_TOOLS", "/nowhere")
    assert main(["kustomize"]) == 1
    assert capsys.readouterr().err.startswith("make kustomize: CHART_TOOLS=/nowhere contains no")


def test_a_component_is_what_the_base_lacks() -> None:
    def of(**spec: object) -> dict[str, Any]:
        return {"kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}

    new = {"kind": "Service", "metadata": {"name": "a"}}
    old = of(replicas=1, containers=[{"name": "c", "args": ["x"]}], paused=True, same={"a/b": 1})
    other = of(replicas=2, containers=[{"name": "c", "args": ["y"]}], same={"a/b": 2}, more=[])
    added, patches = difference([old], [other, new])
    assert added == [new]
    (patch,) = patches
    assert patch["target"] == {"kind": "Deployment", "name": "a"}
    assert yaml.safe_load(patch["patch"]) == [
        {"op": "replace", "path": "/spec/replicas", "value": 2},
        {"op": "replace", "path": "/spec/containers/0/args", "value": ["y"]},
        {"op": "remove", "path": "/spec/paused"},
        {"op": "replace", "path": "/spec/same/a~1b", "value": 2},
        {"op": "add", "path": "/spec/more", "value": []},
    ]
    with pytest.raises(ValueError, match="a component cannot remove"):
        difference([old, new], [old])
