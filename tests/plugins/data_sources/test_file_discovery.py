"""``file-discovery`` validates strictly, follows changes, and keeps the last good state."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from log_watch import Logs

from epp.data_layer.plugins import (
    DiscoveryError,
    DuplicateEndpointError,
    EndpointSpec,
)
from epp.inputs import files
from epp_plugins.data_sources import file_discovery
from epp_plugins.data_sources.endpoints_file import EntryRules, parse, parse_leniently
from epp_plugins.data_sources.file_discovery import FileDiscovery, Params

ONE = "endpoints: [{name: a, address: 10.0.0.1, port: 80}]"
TWO = "endpoints: [{name: a, address: 10.0.0.2, port: 80}]"


class Sink:
    """Queues reports; may refuse them as another source's."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[list[EndpointSpec]] = asyncio.Queue()
        self.refuse = False

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        if self.refuse:
            raise DuplicateEndpointError("default/a", "static", source)
        self.reports.put_nowait(list(specs))

    async def addresses(self) -> list[str]:
        """Wait for the next report and return its addresses."""
        return [spec.address for spec in await self.reports.get()]


@asynccontextmanager
async def running(path: Path, sink: Sink, *, watch: bool = True) -> AsyncIterator[None]:
    discovery = FileDiscovery("file", Params(str(path), watch), poll_seconds=0.01)
    task = asyncio.create_task(discovery.run(sink))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            ONE, [EndpointSpec("default/a", "10.0.0.1:80")], id="YAML with the default namespace"
        ),
        pytest.param(
            '{"endpoints":\n\t[{"name": "a", "namespace": "ns", "address": "fd00::A", "port": 1,'
            '"labels": {"role": "decode"}}]}',
            [EndpointSpec("ns/a", "[fd00::a]:1", {"role": "decode"})],
            id="JSON with tabs, IPv6 and labels",
        ),
        pytest.param("endpoints: []", [], id="none"),
        pytest.param(
            ONE.replace("80", '"80"'),
            [EndpointSpec("default/a", "10.0.0.1:80")],
            id="the port as a text, which the reference takes alone",
        ),
        pytest.param(
            ONE.replace("80}", "80, namespace: , labels: ~}"),
            [EndpointSpec("default/a", "10.0.0.1:80")],
            id="fields that are null",
        ),
        pytest.param(
            "endpoints: [&a {name: a, address: 10.0.0.1, port: 80}, {<<: *a, name: b}]",
            [EndpointSpec("default/a", "10.0.0.1:80"), EndpointSpec("default/b", "10.0.0.1:80")],
            id="one merged into another",
        ),
    ],
)
def test_files_are_read(content: str, expected: list[EndpointSpec]) -> None:
    assert parse(Path("f"), content.encode()) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            "", "Expected `object`, got `null`; expected `endpoints:` and a list", id="empty"
        ),
        pytest.param("endpoint: []", "unknown field `endpoint`", id="unknown top-level field"),
        pytest.param("{}", "missing required field `endpoints`", id="no endpoints"),
        pytest.param(ONE[:-1], "pool.yaml, line ", id="broken YAML"),
        pytest.param(ONE[:-2] + ", port: 81}]", "duplicate key 'port'", id="field given twice"),
        pytest.param(
            f"{ONE}\nendpoints: []", "pool.yaml, line 2, column 1: ", id="list given twice"
        ),
        pytest.param(
            '{"endpoints": [], "endpoints": []}',
            "line 1, column 19: not valid YAML or JSON: duplicate key 'endpoints': remove one",
            id="twice in JSON",
        ),
        pytest.param('{"endpoints": [', "not valid YAML or JSON", id="broken JSON"),
        pytest.param(b"endpoints: \xff", "invalid leading UTF-8 octet", id="not UTF-8"),
        pytest.param(b"endpoints: \x07", "control characters are not allowed", id="control"),
        pytest.param('{"a":' * 5_000, "nested more than 32 levels deep", id="deep JSON"),
        pytest.param("[" * 100_000, "line 1, column 33: not valid", id="nested too deeply"),
        pytest.param(
            "- " * 100_000, "nested more than 32 levels deep", id="lists in lists in one line"
        ),
        pytest.param(
            "a0: &a0 {x: 1}\n"
            + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30)),
            "line 11, column 6: not valid YAML or JSON: a mapping with more than 1000 keys",
            id="merges that double",
        ),
        pytest.param(
            ONE.replace("80}", '!!int ""}'),
            "line 1, column 48: not valid YAML or JSON: '' is not a valid int",
            id="tag of nothing",
        ),
        pytest.param(ONE.replace("80}", "!!bool x}"), "'x' is not a valid bool", id="other tag"),
        pytest.param(
            ONE.replace("80}", "80, labels: {built: 2026-02-30}}"),
            "'2026-02-30' is not a valid timestamp; if it is text, put it in quotes",
            id="date that does not exist",
        ),
        pytest.param(
            ONE.replace("name: a", 'name: "a\\n"'), "at `$.endpoints[0].name`", id="two-line name"
        ),
        pytest.param(
            ONE.replace("80", "0"), "`int` >= 1 - at `$.endpoints[0].port`", id="port zero"
        ),
        *(
            pytest.param(
                ONE.replace("80", repr(port)),
                f"port {port!r} must be a number from 1 to 65535 - at `$.endpoints[0].port`",
                id=f"port {port!r}",
            )
            for port in ("0", "65536", "-1", "8e3", "80 ", "٣")
        ),
        pytest.param(
            ONE.replace("name: a", "name: a/b"), "at `$.endpoints[0].name`", id="slash in the name"
        ),
        pytest.param(
            ONE.replace("port", "prot"), "unknown field `prot` - at `$.endpoints[0]`", id="typo"
        ),
        pytest.param(
            ONE.replace("10.0.0.1", "vllm.local"),
            "'vllm.local' is not an IPv4 or IPv6 address; host names are not resolved - at "
            "`$.endpoints[0].address`",
            id="host name",
        ),
        pytest.param(
            ONE.replace("10.0.0.1", "'fe80::1%eth0'"), "is not an IPv4 or IPv6", id="scoped IPv6"
        ),
        pytest.param(
            ONE.replace("80}", "80, labels: {a: true}}"), "got `bool` - at `$.en", id="label type"
        ),
        pytest.param(
            "endpoints:\n" + "- {name: a, address: 1.1.1.1, port: 1}\n" * 2,
            "pool.yaml, line 3: same namespace and name as `$.endpoints[0]` in line 2, 'default/a':"
            " rename or remove one of them - at `$.endpoints[1]`",
            id="duplicate",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(content: str | bytes, message: str) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    with pytest.raises(DiscoveryError) as caught:
        parse(Path("pool.yaml"), raw)
    assert message in str(caught.value)
    assert "pool.yaml" in str(caught.value)


FAULTY = """\
endpoints:
- {name: a, address: 10.0.0.1, port: "80", metricsHost: 10.0.0.1:81}
- {name: b, address: vllm.local, port: "80"}
- {name: c, address: 10.0.0.3, port: "0"}
- {name: d, address: 10.0.0.4}
- {name: a, address: 10.0.0.2, port: "80", labels: {role: decode}}
version: 2
"""


def test_faulty_entries_are_left_out_where_the_reference_leaves_them_out() -> None:
    specs, faults = parse_leniently(Path("f"), FAULTY.encode())
    assert specs == [EndpointSpec("default/a", "10.0.0.2:80", {"role": "decode"})]
    assert faults == [
        (
            "endpoints file f, line 2: unknown field `metricsHost`, ignored; the fields are name,"
            " address, port, namespace, labels - at `$.endpoints[0]`"
        ),
        (
            "endpoints file f, line 3: 'vllm.local' is not an IPv4 or IPv6 address; host names are"
            " not resolved - at `$.endpoints[1].address`"
        ),
        (
            "endpoints file f, line 4: port '0' must be a number from 1 to 65535 - at"
            " `$.endpoints[2].port`"
        ),
        "endpoints file f, line 5: Object missing required field `port` - at `$.endpoints[3]`",
        (
            "endpoints file f, line 6: same namespace and name as an earlier entry, 'default/a',"
            " which this entry replaces: rename or remove one of them - at `$.endpoints[4]`"
        ),
    ]


def test_every_faulty_entry_is_named_with_its_line() -> None:
    content = """\
# The pool
endpoints:
- name: a
  address: 10.0.0.1
  port: "x"
- name: b
  address: 10.0.0.2
  port: 80
  lables: {role: decode}
- [c]
- name: d
  address: vllm.local
  port: 80
- {name: e, address: 10.0.0.5, port: 80}
- name: e
  address: 10.0.0.6
  port: 80
"""
    with pytest.raises(DiscoveryError) as caught:
        parse(Path("f"), content.encode())
    assert str(caught.value).splitlines() == [
        (
            "endpoints file f, line 5: port 'x' must be a number from 1 to 65535 - at"
            " `$.endpoints[0].port`"
        ),
        ("endpoints file f, line 6: Object contains unknown field `lables` - at `$.endpoints[1]`"),
        "endpoints file f, line 10: Expected `object`, got `array` - at `$.endpoints[2]`",
        (
            "endpoints file f, line 12: 'vllm.local' is not an IPv4 or IPv6 address; host names"
            " are not resolved - at `$.endpoints[3].address`"
        ),
        (
            "endpoints file f, line 15: same namespace and name as `$.endpoints[4]` in line 14,"
            " 'default/e': rename or remove one of them - at `$.endpoints[5]`"
        ),
    ]


def test_the_reported_faults_are_limited() -> None:
    content = "endpoints:\n" + "- {name: a, address: x, port: 1}\n" * 50
    with pytest.raises(DiscoveryError) as caught:
        parse(Path("f"), content.encode())
    *faults, more = str(caught.value).splitlines()
    assert (len(faults), more) == (20, "endpoints file f: 30 more faults")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        pytest.param(
            '{\n "endpoints": [\n  {"name": "a", "address": "x",\n   "port": 1}]}',
            "f, line 3: 'x' is not",
            id="JSON",
        ),
        pytest.param(
            '{"note": "\\ud83d", "endpoints": [{"name": "a", "address": "x", "port": 1}]}',
            "f: 'x' is not",
            id="JSON that is no YAML",
        ),
        pytest.param(
            "base: &b {address: x, port: 1}\nendpoints:\n- name: a\n  <<: *b\n",
            "f, line 3: 'x' is not",
            id="merged",
        ),
    ],
)
def test_lines_are_reported_where_they_are_known(content: str, where: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_leniently(Path("f"), content.encode())
    assert f"endpoints file {where}" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("endpoints: 1", "Expected `array`", id="no list"),
        pytest.param("endpoints: [1]", "got `int` - at `$.endpoints[0]`", id="no sound entry"),
        pytest.param("endpoints: [", "not valid YAML", id="no YAML"),
    ],
)
def test_a_file_without_a_sound_entry_is_refused_in_any_mode(content: str, message: str) -> None:
    with pytest.raises(DiscoveryError) as caught:
        parse_leniently(Path("f"), content.encode())
    assert message in str(caught.value)


async def test_the_log_names_what_was_left_out(tmp_path: Path, logs: Logs) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(FAULTY)
    sink = Sink()
    discovery = FileDiscovery("file", Params(str(path), False), compat="reference")
    task = asyncio.create_task(discovery.run(sink))
    assert await sink.addresses() == ["10.0.0.2:80"]
    task.cancel()
    (entry,) = logs.entries
    assert entry["event"] == "endpoints file has faults, its sound entries are used"
    assert (entry["endpoints"], len(entry["faults"]), entry["more_faults"]) == (1, 5, 0)


async def test_the_first_look_must_succeed(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    discovery = FileDiscovery("file", Params(str(path)))
    with pytest.raises(DiscoveryError, match="cannot be read: no such file"):
        await discovery.run(Sink())
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(DiscoveryError, match="larger than the limit of 1 MiB"):
        await discovery.run(Sink())


async def test_writes_renames_and_swapped_links_are_seen(tmp_path: Path) -> None:
    for version, content in (("v1", ONE), ("v2", TWO)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "pool.yaml").write_text(content)
    # As kubelet mounts a ConfigMap: pool.yaml -> ..data/pool.yaml, ..data -> v1
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "pool.yaml"
    path.symlink_to("..data/pool.yaml")
    sink = Sink()
    async with running(path, sink):
        assert await sink.addresses() == ["10.0.0.1:80"]
        (tmp_path / "..tmp").symlink_to("v2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        assert await sink.addresses() == ["10.0.0.2:80"]
        (tmp_path / "v2" / "pool.yaml").write_text(ONE)
        assert await sink.addresses() == ["10.0.0.1:80"]
        (tmp_path / "new").write_text(TWO)
        (tmp_path / "new").rename(path)
        assert await sink.addresses() == ["10.0.0.2:80"]


async def test_faults_keep_the_last_good_state_and_are_reported_once(
    tmp_path: Path, logs: Logs
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(ONE)
    sink = Sink()
    async with running(path, sink):
        assert await sink.addresses() == ["10.0.0.1:80"]
        path.unlink()
        await logs.until("cannot be read")
        (tmp_path / "broken").write_text("endpoints: 1")
        (tmp_path / "broken").rename(path)
        await logs.until("Expected `array`, got `int`")
        sink.refuse = True
        (tmp_path / "good").write_text(TWO)
        (tmp_path / "good").rename(path)
        await logs.until("'static' has it already")
        assert sink.reports.empty()
        sink.refuse = False  # the other source gave the name up; the file did not change
        assert await sink.addresses() == ["10.0.0.2:80"]
        await logs.until("recovered")
    events = [(log["log_level"], log["event"]) for log in logs.entries]
    kept = ("warning", "endpoints file refused, last good endpoints kept")
    assert events == [
        kept,
        kept,
        kept,
        ("info", "endpoints file reloaded"),
        ("info", "endpoints file recovered"),
    ]


async def test_an_unwatched_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(ONE)
    sink = Sink()
    async with running(path, sink, watch=False):
        assert await sink.addresses() == ["10.0.0.1:80"]
        path.unlink()


def test_parameters_have_the_references_names() -> None:
    assert msgspec.convert({"path": "p", "watchFile": False}, Params) == Params("p", False)
    with pytest.raises(msgspec.ValidationError, match=r"`\$\.path`"):
        msgspec.convert({"path": ""}, Params)
    with pytest.raises(msgspec.ValidationError, match="watch_file"):
        msgspec.convert({"path": "p", "watch_file": False}, Params)


async def test_a_faulty_file_is_parsed_once_however_often_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(ONE)
    parsed: list[bytes] = []
    looks: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def noted_parse(path: Path, content: bytes, rules: EntryRules) -> list[EndpointSpec]:
        parsed.append(content)
        return parse(path, content, rules)

    def noted_look(path: Path) -> files.FileState:
        loop.call_soon_threadsafe(looks.put_nowait, None)
        return look(path)

    look = files.look

    monkeypatch.setattr(file_discovery, "parse", noted_parse)
    monkeypatch.setattr(files, "look", noted_look)
    sink = Sink()
    async with running(path, sink):
        assert await sink.addresses() == ["10.0.0.1:80"]
        path.write_text("endpoints: 1")
        while len(parsed) < 2:
            await looks.get()
        for _ in range(5):
            await looks.get()
    assert parsed == [ONE.encode(), b"endpoints: 1"]
