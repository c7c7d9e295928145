"""The doctor's inputs: bootstraps and dumps in every spelling, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.doctor import Gateway, Level, UnreadableError, examine_envoy, read_file
from epp.doctor.sources import source
from epp.doctor.tree import MAX_LEVELS, ConfigNode, with_proto_names

from .envoys import PICKER, Json, make_envoy, report, rows_of

SECRET = "hunter2-do-not-print"


def dump_of(bootstrap: Json) -> Json:
    """A /config_dump as Envoy writes it, of resources from xDS and the bootstrap without them."""
    resources = bootstrap["static_resources"]
    (listener,) = resources["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager.pop("route_config")
    manager["rds"] = {"route_config_name": routes["name"]}
    kind = "type.googleapis.com/envoy.admin.v3."
    epp, pool = resources["clusters"]
    static = {
        "@type": "type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap",
        "overload_manager": bootstrap["overload_manager"],
    }
    sections = [
        {"@type": f"{kind}BootstrapConfigDump", "bootstrap": {**static, "admin": {}}},
        {
            "@type": f"{kind}ClustersConfigDump",
            "static_clusters": [{"cluster": epp}],
            "dynamic_active_clusters": [{"version_info": "1", "cluster": pool}],
        },
        {
            "@type": f"{kind}ListenersConfigDump",
            "dynamic_listeners": [{"name": "gateway", "active_state": {"listener": listener}}],
        },
        {
            "@type": f"{kind}RoutesConfigDump",
            "dynamic_route_configs": [{"route_config": routes}],
        },
        {"@type": f"{kind}SecretsConfigDump", "static_secrets": [{"secret": {"key": SECRET}}]},
    ]
    return {"configs": sections}


def camel(value: Any) -> Any:
    """Field names as protobuf's JSON has them; map keys with dots stay."""
    if isinstance(value, dict):
        return {_camel_name(key): camel(each) for key, each in value.items()}
    return [camel(each) for each in value] if isinstance(value, list) else value


def _camel_name(key: str) -> str:
    first, *others = key.split("_")
    return key if "." in key or "@" in key else first + "".join(map(str.capitalize, others))


def untouched(document: Json) -> Json:
    return document


WAYS: dict[str, Callable[[Json], Json]] = {
    "a bootstrap": untouched,
    "a bootstrap in camelCase": camel,
    "a dump": dump_of,
    "a dump in camelCase": lambda document: camel(dump_of(document)),
    "a dump inside a tool's document": lambda document: {"ns": {"pod-1": dump_of(document)}},
}


@pytest.mark.parametrize("write", [yaml.safe_dump, json.dumps], ids=["YAML", "JSON"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_spelling_is_read_alike(
    way: Callable[[Json], Json], write: Callable[[Json], str], tmp_path: Path
) -> None:
    sound, trapped = make_envoy(), make_envoy()
    del trapped.action["timeout"], trapped.picker["message_timeout"]
    del trapped.pool["circuit_breakers"]
    path = tmp_path / "envoy"

    def bad(document: Json) -> list[tuple[str, str]]:
        path.write_text(write(way(document)))
        rows = examine_envoy(Gateway(read_file(path))).rows
        return [(row.check, row.finding.level.value) for row in rows if row.finding.why]

    assert bad(sound.document) == []
    assert bad(trapped.document) == [
        ("route-timeout", "error"),
        ("circuit-breakers", "error"),
        ("message-timeout", "warning"),
        ("circuit-breakers", "warning"),  # max_retries is its own finding
    ]


def test_the_place_is_the_same_in_a_dump_and_in_a_bootstrap() -> None:
    envoy = make_envoy()
    envoy.picker["observability_mode"] = True
    dumped = make_envoy()
    dumped.picker["observability_mode"] = True
    (in_bootstrap,) = rows_of(envoy.report(), "observability-mode")
    (in_dump,) = rows_of(report(dump_of(dumped.document)), "observability-mode")
    assert in_bootstrap == in_dump
    assert in_dump.finding.where == f"{PICKER}.observability_mode"


def test_a_filter_from_discovery_is_looked_up_in_the_dump() -> None:
    envoy = make_envoy()
    dump = dump_of(envoy.document)
    item = envoy.filters[0]
    config = {**item.pop("typed_config"), "observability_mode": True}
    item["config_discovery"] = {"config_source": {"ads": {}}}
    kind = "type.googleapis.com/envoy.admin.v3.EcdsConfigDump"
    found = {"ecds_filter": {"name": "picker", "typed_config": config}}
    dump["configs"].append({"@type": kind, "ecds_filters": [found]})
    (row,) = rows_of(report(dump), "observability-mode")
    assert (row.finding.level, row.finding.where) == (
        Level.ERROR,
        "ecds_filters[picker].typed_config.observability_mode",
    )


@pytest.mark.parametrize("wrapper", ["a struct", "a matcher"])
def test_a_wrapped_filter_is_unwrapped(wrapper: str) -> None:
    envoy = make_envoy()
    item = envoy.filters[0]
    config = {**item["typed_config"], "observability_mode": True}
    if wrapper == "a struct":
        kind = config.pop("@type")
        typed = {"@type": "type.googleapis.com/xds.type.v3.TypedStruct"}
        item["typed_config"] = {**typed, "type_url": kind, "value": config}
    else:
        matcher = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher"
        extension = {"name": "picker", "typed_config": config}
        item["typed_config"] = {"@type": matcher, "extension_config": extension}
    assert rows_of(envoy.report(), "observability-mode")[0].finding.level is Level.ERROR


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(f"a: [\n  {SECRET}: }}\n", r"envoy:2:\d+: neither YAML nor JSON", id="broken"),
        pytest.param(f"!python/object:os.{SECRET} {{}}", "neither YAML nor JSON", id="a tag"),
        pytest.param(f'{{"password": "{SECRET}"}}', "neither a bootstrap", id="something else"),
        pytest.param(SECRET, "neither a bootstrap", id="a word"),
        pytest.param("", "neither a bootstrap", id="nothing"),
        pytest.param("a: 1\n---\nb: 2\n", r"envoy:2:1: several YAML", id="manifests"),
        pytest.param("[]", "neither a bootstrap", id="a list"),
        pytest.param('{"a":' * 300 + "1" + "}" * 300, "nested too deeply", id="a deep one"),
        pytest.param("[" * 5000, "neither YAML nor JSON", id="a very deep one"),
        pytest.param("configs: []\n", "neither a bootstrap", id="an empty dump"),
        pytest.param(
            json.dumps({"a": {"configs": [{}]}, "b": {"configs": [{}]}}),
            "configurations of 2 Envoys, not 1",
            id="two Envoys",
        ),
    ],
)
def test_what_is_no_configuration_is_refused_without_quoting_it(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "envoy"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=message) as caught:
        read_file(path)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="No such file"):
        read_file(tmp_path / "envoy.yaml")
    (tmp_path / "envoy.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UnreadableError, match="not UTF-8"):
        read_file(tmp_path / "envoy.yaml")


def test_secrets_are_never_in_a_report() -> None:
    envoy = make_envoy()
    certificate = {"private_key": {"inline_string": SECRET}, "password": {"inline_string": SECRET}}
    context = envoy.epp["transport_socket"]["typed_config"]["common_tls_context"]
    context.update(tls_certificates=[certificate], validation_context={"x": SECRET})
    envoy.picker["grpc_service"]["initial_metadata"] = [{"key": "authorization", "value": SECRET}]
    envoy.mode["request_body_mode"] = envoy.picker["message_timeout"] = SECRET
    envoy.pool["circuit_breakers"] = {"thresholds": [{"max_requests": SECRET}]}
    found = report(dump_of(envoy.document))
    assert found.count(Level.ERROR) > 0
    assert SECRET not in found.json()
    assert SECRET not in "\n".join(found.lines())


def test_the_version_stands_in_a_dump() -> None:
    version = {"version": {"major_number": 1, "minor_number": 36}}
    document = {**make_envoy().document, "node": {"user_agent_build_version": version}}
    assert source(document, "test").version == (1, 36, 0)
    assert source(make_envoy().document, "test").version is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0.2s", 0.2), ("15s", 15.0), ("0s", 0.0), ("soon", 7.0), (3, 7.0), (None, 7.0)],
)
def test_durations(value: object, seconds: float) -> None:
    assert ConfigNode(value, "").seconds(7.0) == seconds


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), ("33554432", 33554432), (2.0, 2), (True, 7), ("many", 7), ("٣", 7), (None, 7)],
)
def test_numbers(value: object, number: int) -> None:
    assert ConfigNode(value, "").number(7) == number


def test_names_of_fields_and_keys_of_maps() -> None:
    given = {"typedPerFilterConfig": {"my.Filter": {"maxStreams": [{"aB": 1}]}}, "@type": "x/aB"}
    assert with_proto_names(given) == {
        "typed_per_filter_config": {"my.Filter": {"max_streams": [{"a_b": 1}]}},
        "@type": "x/aB",
    }


def test_the_depth_is_limited() -> None:
    nested: object = 1
    for level in range(MAX_LEVELS):
        nested = [nested] if level % 2 else {"a": nested}
    assert with_proto_names(nested) == nested
    with pytest.raises(RecursionError):
        with_proto_names([nested])


def test_a_place_leads_through_names_numbers_and_quoted_keys() -> None:
    tree = ConfigNode({"a": [{"name": "x"}, {"b": {"c.d": 1}}]}, "")
    first, second = tree.get("a").items()
    assert first.get("missing", "field").path == "a[x].missing.field"
    assert second.get("b", "c.d") == ConfigNode(1, "a[1].b[c.d]")
    assert not first.get("missing")
