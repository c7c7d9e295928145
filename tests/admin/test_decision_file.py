"""The file of decisions: complete lines, rotation, and what happens if it cannot be written."""

import errno
import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from admin.recorded import STARTED_AT, Recorded
from epp.admin import DecisionFile, DecisionFileCollector
from epp.admin.decision_search import DecisionSearchError, find_decision
from epp.request_control import EndCause, RequestError


def file_at(path: Path, **given: Any) -> DecisionFile:
    limits = {"max_bytes": 1 << 20, "max_files": 3} | given
    return DecisionFile(path, wall_offset=lambda: STARTED_AT, **limits)


def send(recorded: Recorded, *ids: str) -> None:
    for each in ids:
        recorded.epp.handle(request_id=each).close(EndCause.COMPLETED)


def written(path: Path) -> Sequence[str]:
    return [json.loads(line)["request_id"] for line in path.read_text().splitlines()]


def counted(file: DecisionFile) -> dict[str, float]:
    return {
        "/".join([sample.name, *sample.labels.values()]).removeprefix("llm_d_epp_"): sample.value
        for family in DecisionFileCollector(file).collect()
        for sample in family.samples
    }


def write_all(file: DecisionFile) -> None:
    file.start()
    file.close()


def test_decisions_are_written_once_their_requests_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    file = file_at(path)
    recorded = Recorded(file=file, pool="serving")
    first, second = recorded.epp.handle(request_id="first"), recorded.epp.handle(request_id="2nd")
    second.response_started(200)
    second.close(EndCause.COMPLETED)
    first.close(EndCause.CLIENT_DISCONNECT)
    with pytest.raises(RequestError):
        recorded.epp.handle(b"{", request_id="refused")
    recorded.epp.handle(request_id="in flight")
    write_all(file)
    assert written(path) == ["2nd", "first", "refused"]
    record = find_decision(path, "2nd")
    assert record == recorded.record("2nd")
    assert (record.outcome, record.status, record.pool) == ("completed", 200, "serving")
    assert counted(file) == {
        "decisions_written_total": 3,
        "decisions_dropped_total/queue-full": 0,
        "decisions_dropped_total/write-failed": 0,
    }


def test_a_long_file_is_renamed_and_the_oldest_removed(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    file = file_at(path, max_bytes=4000, max_files=3)
    recorded = Recorded(file=file)
    ids = [f"request-{number:02}" for number in range(20)]
    send(recorded, *ids)
    write_all(file)
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert all(each.stat().st_size <= 4000 for each in files)
    kept = [name for each in reversed(files) for name in written(each)]
    assert kept == ids[-len(kept) :]
    assert find_decision(path, kept[0]).request_id == kept[0]
    with pytest.raises(DecisionSearchError, match=r"no decision of the request 'request-00' is in"):
        find_decision(path, ids[0])


def test_a_request_that_outlives_the_ring_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    file = file_at(path)
    recorded = Recorded(file=file, explain_decisions=2)
    long = recorded.epp.handle(request_id="long")
    send(recorded, "a", "b", "c")
    long.close(EndCause.COMPLETED)
    write_all(file)
    assert written(path) == ["a", "b", "c", "long"]
    assert len(find_decision(path, "long").profiles[0].totals) == 2


def test_requests_that_outlive_the_memory_are_counted(tmp_path: Path) -> None:
    file = file_at(tmp_path / "decisions.jsonl")
    recorded = Recorded(file=file, explain_decisions=2, explain_bytes=10_000)
    in_flight = [recorded.epp.handle(request_id=f"r-{number}") for number in range(40)]
    for each in in_flight:
        each.close(EndCause.COMPLETED)
    write_all(file)
    counts = counted(file)
    assert counts["decisions_dropped_total/queue-full"] > 0
    total = counts["decisions_dropped_total/queue-full"] + counts["decisions_written_total"]
    assert total == 40


def test_decisions_beyond_the_queue_are_dropped_and_counted(tmp_path: Path) -> None:
    file = file_at(tmp_path / "decisions.jsonl", queue_bytes=5000)
    send(Recorded(file=file), *(f"r-{number}" for number in range(10)))
    write_all(file)
    counts = counted(file)
    assert 0 < counts["decisions_written_total"] < 10
    assert counts["decisions_dropped_total/queue-full"] == 10 - counts["decisions_written_total"]


def test_a_missing_folder_is_reported_once_and_requests_go_on(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "decisions.jsonl"
    file = file_at(path)
    recorded = Recorded(file=file)
    send(recorded, "a", "b")
    with capture_logs() as lines:
        write_all(file)
    (line,) = lines
    assert (line["event"], line["path"], line["error"]) == (
        "decisions cannot be written; requests are served all the same",
        str(path),
        "no such file or directory",
    )
    assert counted(file)["decisions_dropped_total/write-failed"] == 2
    assert recorded.record("a").outcome == "completed"


def test_a_folder_in_place_of_the_file_is_reported(tmp_path: Path) -> None:
    file = file_at(tmp_path)
    with capture_logs() as lines:
        write_all(file)
    assert [each["error"] for each in lines] == ["is a directory"]


def test_a_full_disk_leaves_whole_lines_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "decisions.jsonl"
    file = file_at(path)
    recorded = Recorded(file=file)
    send(recorded, "before", "lost", "after")
    calls = 0

    def write(self: FileIO, data: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:  # the beginning of the second line fits
            return os.write(self.fileno(), data[:10])
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(self.fileno(), data)

    class Disk(FileIO):
        """A disk that is full for a while."""

    monkeypatch.setattr(Disk, "write", write)
    monkeypatch.setattr("epp.admin.decision_file.FileIO", Disk)
    with capture_logs() as lines:
        write_all(file)
    assert [each["error"] for each in lines] == ["no space left on device"]
    first, torn, last = path.read_text().splitlines()
    assert json.loads(first)["request_id"] == "before"
    assert len(torn) == 10
    assert json.loads(last)["request_id"] == "after"
    assert find_decision(path, "after").request_id == "after"
    assert counted(file)["decisions_dropped_total/write-failed"] == 1


@pytest.mark.parametrize(
    ("given", "error"),
    [
        pytest.param(
            "request", "2 request ids begin with 'request': request-1, request-2; give more", id="2"
        ),
        pytest.param("other", "no decision of the request 'other' is in ", id="none"),
    ],
)
def test_a_decision_that_is_not_found_in_the_file(tmp_path: Path, given: str, error: str) -> None:
    path = tmp_path / "decisions.jsonl"
    file = file_at(path)
    send(Recorded(file=file), "request-1", "request-2")
    write_all(file)
    with pytest.raises(DecisionSearchError) as found:
        find_decision(path, given)
    assert error in str(found.value)
    assert find_decision(path, "request-1").request_id == "request-1"


def test_odd_request_ids_are_found(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    file = file_at(path)
    send(Recorded(file=file), 'a "quoted" \\ ü \x1b')
    write_all(file)
    assert find_decision(path, 'a "quoted" \\ ü').request_id == 'a "quoted" \\ ü \x1b'


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(DecisionSearchError, match="there is no such file; give the path of"):
        find_decision(tmp_path / "decisions.jsonl", "r")
    with pytest.raises(DecisionSearchError, match="no such file or directory"):
        find_decision(tmp_path / "missing" / "decisions.jsonl", "r")


def test_lines_of_another_version_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text('{"request_id":"r-1"}\n')
    with pytest.raises(DecisionSearchError, match="of another version of the endpoint picker"):
        find_decision(path, "r-1")
