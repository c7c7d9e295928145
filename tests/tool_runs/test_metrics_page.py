"""The generated tables of docs/metrics.md."""

import re
from pathlib import Path

import pytest

from epp.observability.metrics import SCHEDULING
from tools.docs import metrics_page
from tools.docs.metric_declarations import Declared, declared_metrics
from tools.docs.metric_notes import SUBJECTS, Subject
from tools.docs.metrics_page import BEGIN, END, PAGE, NotesError, metric_tables, with_tables

ROOT = Path(__file__).parents[2]
TABLES = metric_tables()
ROWS = {
    cells[0].strip("`"): cells
    for line in TABLES.splitlines()
    if len(cells := [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]) == 6
}


def test_the_page_is_that_of_the_code() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_tables(page) == page, "run `make docs`"


def test_every_metric_has_one_row_with_all_its_cells() -> None:
    declared = declared_metrics()
    assert len(declared) > 150
    assert set(declared) <= ROWS.keys()
    for name, each in declared.items():
        _, kind, labels, _, meaning, when = ROWS[name]
        assert kind == each.kind
        assert re.findall(r"`(\w+)`", labels) == list(each.labels)
        assert meaning.endswith(".") or name.startswith("python_")  # the texts of a library
        assert when
    assert len(re.findall(r"^\| `\w+` \| (?:counter|gauge|histogram)", TABLES, re.M)) == len(
        declared
    )


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("llm_d_epp_request_total", ""),
        ("llm_d_epp_ready_endpoints", ""),
        ("llm_d_epp_metrics_page_bytes", "bytes"),
        ("llm_d_epp_transport_certificate_expiry_timestamp_seconds", "Unix time, s"),
        ("llm_d_epp_endpoint_metrics_age_seconds", "s"),
        ("llm_d_epp_prefix_indexer_observed_tokens_total", "tokens"),
        ("llm_d_epp_average_kv_cache_utilization", "0 to 1"),
    ],
)
def test_units_follow_from_the_names(name: str, unit: str) -> None:
    assert ROWS[name][3] == unit


def test_buckets_are_listed_once_and_referred_to_by_number() -> None:
    listed = dict(re.findall(r"^\| (\d+) \| ([\d. ]+) \|$", TABLES, re.M))
    assert len(set(listed.values())) == len(listed)
    unit, number = ROWS["llm_d_epp_scheduler_e2e_duration_seconds"][3].split("; buckets ")
    assert unit == "s"
    assert tuple(map(float, listed[number].split())) == SCHEDULING
    used = {number for cells in ROWS.values() for number in re.findall(r"buckets (\d+)", cells[3])}
    assert used == listed.keys()


def test_a_metric_of_a_plugin_has_a_link_to_it() -> None:
    when = ROWS["llm_d_epp_disagg_degraded_total"][5]
    for plugin in ("disagg-profile-handler", "pd-profile-handler"):
        assert f"[{plugin}](plugins/{plugin}.md)" in when


def test_text_around_the_tables_is_kept() -> None:
    page = with_tables(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n")
    assert page == f"# Before\n\n{BEGIN}\n\n{TABLES}\n\n{END}\n\nAfter\n"


def test_a_page_without_a_place_for_the_tables_is_refused() -> None:
    with pytest.raises(NotesError, match=r"docs/metrics.md has no lines .* put them back"):
        with_tables("# Metrics\n")


def test_a_metric_without_a_note_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    new = {"llm_d_epp_new_total": Declared("llm_d_epp_new_total", "counter", (), "New.")}
    monkeypatch.setattr(metrics_page, "declared_metrics", lambda: {**declared_metrics(), **new})
    with pytest.raises(NotesError, match=r"no note says when .*: \['llm_d_epp_new_total'\]"):
        metric_tables()


def test_a_note_on_a_metric_that_is_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = (*SUBJECTS, Subject("More", {"gone_total": "never"}))
    monkeypatch.setattr(metrics_page, "SUBJECTS", subjects)
    with pytest.raises(NotesError, match=r"do not exist: \['llm_d_epp_gone_total'\]"):
        metric_tables()
