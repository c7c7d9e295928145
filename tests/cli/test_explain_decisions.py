"""The output of `epp explain request` for a decision: text, tables and JSON."""

from pathlib import Path

import msgspec
import pytest
from admin.recorded import Recorded
from typer.testing import CliRunner

from epp.admin import DecisionRecord
from epp.building import make_builder
from epp.cli import cli
from epp.config import load_text
from epp.graph_switch import pipeline_of
from epp.parsing.plugins import Usage
from epp.request_control import BodyTooLargeError, EndCause
from epp.request_control.force_header import FORCE_HEADER, signed
from epp.request_control.force_keys import ForceKeys
from epp.testing import make_endpoint

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: label-selector-filter, name: a100, parameters: {matchLabels: {gpu: a100}}}
- {type: low-queue-filter, name: short-queue, parameters: {threshold: 50}}
- {type: least-kv-cache-filter, name: free-cache}
- {type: low-queue-filter, name: very-short-queue, parameters: {threshold: 3}}
- type: decision-tree-filter
  name: tree
  parameters: {filter: very-short-queue, nextOnFailure: {filter: free-cache}}
- {type: queue-scorer, name: queue}
- {type: kv-cache-utilization-scorer, name: kv}
- {type: running-requests-size-scorer, name: running}
- {type: prefix-cache-scorer, name: prefix}
- {type: max-score-picker, name: best}
schedulingProfiles:
- name: main
  plugins:
  - pluginRef: a100
  - pluginRef: short-queue
  - pluginRef: tree
  - {pluginRef: queue, weight: 2}
  - {pluginRef: kv, weight: 2}
  - {pluginRef: running, weight: 1}
  - {pluginRef: prefix, weight: 3}
  - pluginRef: best
- name: only-kv
  plugins:
  - {pluginRef: kv, weight: 1}
  - pluginRef: best
extensions:
  shadow:
  - {profile: only-kv, sample: 1.0}
"""

GOLDEN = Path(__file__).with_name("explained_decision.txt")
"""What `epp explain request` prints, without spaces at the ends of lines."""


def recorded() -> DecisionRecord:
    a100 = {"gpu": "a100"}
    pool = [
        make_endpoint("default/a", labels=a100, kv_cache_usage=0.5, requested_at=99.5),
        make_endpoint(
            "default/b",
            labels=a100,
            waiting_requests=2,
            running_requests=4,
            kv_cache_usage=0.1,
            requested_at=99.5,
        ),
        make_endpoint("default/c", labels=a100, waiting_requests=9, requested_at=99.5),
        make_endpoint("default/d", labels={"gpu": "t4"}, requested_at=99.5),
        make_endpoint("default/e", labels=a100, waiting_requests=99, requested_at=99.5),
    ]
    made = Recorded(pool)
    made.epp.director.pipeline = pipeline_of(make_builder().build(load_text(CONFIG, "test")))
    routed = made.epp.handle(b'{"model": "llama", "prompt": "%s"}' % (b"x" * 60))
    routed.body_sent()
    made.clock.now += 0.25
    routed.response_started(200)
    routed.response_seen(
        Usage(40, 7, 16),
        body_bytes=1,
        began_at=made.clock.now,
        ended_at=made.clock.now,
        is_whole=True,
    )
    made.clock.now += 0.5
    routed.close(EndCause.COMPLETED)
    return made.record()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(msgspec.json.encode(recorded()) + b"\n")
    return path


def run(command: str, *options: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli, ["explain", command, *options])
    return done.exit_code, done.stdout, done.stderr


def test_a_decision_is_explained(file: Path) -> None:
    status, stdout, stderr = run("request", "r-1", "--file", str(file))
    assert (status, stderr) == (0, "")
    assert "\n".join(line.rstrip() for line in stdout.splitlines()) + "\n" == GOLDEN.read_text()


def test_a_request_that_was_not_read_shows_its_path(tmp_path: Path) -> None:
    made, file = Recorded(), tmp_path / "decisions.jsonl"
    made.epp.director.ended_early(
        BodyTooLargeError("at most 100 bytes"),
        request_id="r-1",
        headers={":path": "/v1/completions?key=hidden"},
        received_at=made.clock.now,
    )
    file.write_bytes(msgspec.json.encode(made.record()) + b"\n")
    status, stdout, _ = run("request", "r-1", "--file", str(file))
    assert status == 0
    assert "0 ms after its headers; path /v1/completions, not read\n" in stdout
    assert "(PayloadTooLarge): at most 100 bytes\n" in stdout


def test_json_has_everything(file: Path) -> None:
    status, stdout, _ = run("request", "r-1", "--file", str(file), "--json")
    assert status == 0
    assert msgspec.json.decode(stdout, type=DecisionRecord) == recorded()


def test_a_missing_decision_ends_with_status_2(file: Path) -> None:
    status, stdout, stderr = run("request", "r-2", "--file", str(file))
    assert (status, stdout) == (2, "")
    assert "no decision of the request 'r-2' is in" in stderr


def test_a_forced_decision_says_so_and_is_not_made_again(tmp_path: Path) -> None:
    key, file, config = tmp_path / "key", tmp_path / "decisions.jsonl", tmp_path / "same.yaml"
    key.write_bytes(b"k" * 32)
    config.write_text(CONFIG)
    made = Recorded(force_keys=ForceKeys(key))
    forcing = {FORCE_HEADER: signed("default/b", 160, b"k" * 32)}
    made.epp.handle(headers=forcing).close(EndCause.COMPLETED)
    record = made.record()
    assert (record.is_forced, record.score, record.endpoint) == (True, None, "default/b")
    file.write_bytes(msgspec.json.encode(record) + b"\n")
    status, stdout, stderr = run("request", "r-1", "--file", str(file))
    lines = stdout.splitlines()
    assert (status, stderr) == (0, "")
    assert lines[0] == "r-1: default/b was forced by a signed header."
    assert lines[4] == "no filter, scorer or picker was asked"
    status, _, stderr = run("what-if", "r-1", "--file", str(file), "--config", str(config))
    assert status == 2
    assert "of 'r-1' was forced by a signed header: no configuration changes that" in stderr


def test_what_if_says_what_would_be_different(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CONFIG.replace("{matchLabels: {gpu: a100}}", "{matchLabels: {gpu: t4}}"))
    status, stdout, stderr = run("what-if", "r-1", "--file", str(file), "--config", str(other))
    assert (status, stderr) == (1, "")
    lines = stdout.splitlines()
    assert lines[0] == (
        "r-1: default/d instead of default/a. default/d was the only one of 5 endpoints that passed"
        " the filters."
    )
    assert lines[1] == (
        "computed: a100, short-queue, tree, queue, kv, running, prefix, single-profile-handler"
    )
    assert lines[2] == ""


def test_what_if_with_the_same_configuration_is_as_before(file: Path, tmp_path: Path) -> None:
    same = tmp_path / "same.yaml"
    same.write_text(CONFIG)
    status, stdout, _ = run("what-if", "r-1", "--file", str(file), "--config", str(same), "--json")
    assert status == 0
    document = msgspec.json.decode(stdout)
    assert document["is_same"] is True
    before, after = document["before"]["profiles"][0], document["after"]["profiles"][0]
    assert [after[name] for name in ("endpoints", "scorers", "totals", "filters")] == [
        before[name] for name in ("endpoints", "scorers", "totals", "filters")
    ]


def test_what_if_with_a_broken_configuration_names_the_fault(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(CONFIG.replace("pluginRef: tree", "pluginRef: three"))
    status, stdout, stderr = run("what-if", "r-1", "--file", str(file), "--config", str(broken))
    assert (status, stdout) == (2, "")
    assert "three" in stderr
