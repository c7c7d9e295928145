"""The learned state in a file: replaced atomically, and refused when it is damaged."""

from pathlib import Path

import msgspec
import pytest
from plugins.predicted_time.fleets import Fleet, state_written
from structlog.testing import capture_logs

from epp_plugins.predicted_time import FleetModel, StateFile


@pytest.fixture(scope="module")
def learned() -> FleetModel:
    fleet = Fleet({"a": 1.0, "b": 2.0}, lambda tokens: 0.02 + tokens / 1e4)
    fleet.run(200, 3.0, (200.0, 3000.0))
    return fleet.model


def test_what_is_written_is_read_again(tmp_path: Path, learned: FleetModel) -> None:
    file = StateFile(str(tmp_path / "state.json"))
    file.write_in_thread(learned.state())
    file.finish(learned.state())
    state_written()
    assert file.read() == learned.state()
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_no_file_is_no_state(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert StateFile(str(tmp_path / "state.json")).read() is None
    assert logs == []


def changed(state: bytes, **values: object) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(state) | values)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(lambda state: state[: len(state) // 2], "truncated", id="cut off"),
        pytest.param(lambda state: b"\0" * len(state), "malformed", id="zeros"),
        pytest.param(lambda _: b"", "truncated", id="empty"),
        pytest.param(lambda state: changed(state, version=2), "version", id="of another version"),
        pytest.param(lambda state: changed(state, mean_service=-1.0), "mean_service", id="a sign"),
        pytest.param(lambda state: changed(state, mean_service="1"), "mean_service", id="a type"),
        pytest.param(lambda state: changed(state, more=1), "more", id="an unknown field"),
        pytest.param(lambda _: b" " * (16 * 1024 * 1024 + 1), "longer than", id="too long"),
    ],
)
def test_a_damaged_file_is_refused_and_replaced(
    tmp_path: Path, learned: FleetModel, damage: object, reason: str
) -> None:
    path = tmp_path / "state.json"
    assert callable(damage)
    path.write_bytes(damage(msgspec.json.encode(learned.state())))
    file = StateFile(str(path))
    with capture_logs() as logs:
        assert file.read() is None
    (log,) = logs
    assert log["event"] == "learned state refused, learning starts anew"
    assert reason in log["reason"]
    assert log["file"] == str(path)
    file.finish(learned.state())
    state_written()
    assert file.read() == learned.state()


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, learned: FleetModel
) -> None:
    folder = tmp_path / "missing"
    file = StateFile(str(folder / "state.json"))
    with capture_logs() as logs:
        for _ in range(2):
            file.finish(learned.state())
            state_written()
    assert [log["event"] for log in logs] == ["learned state not written"]
    folder.mkdir()
    file.finish(learned.state())
    state_written()
    assert file.read() == learned.state()
