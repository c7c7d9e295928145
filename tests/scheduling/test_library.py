"""The scheduler as a library: any endpoints, no observer, no dependencies."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from epp.scheduling import (
    CycleState,
    Filter,
    GuardRails,
    NoEndpointsError,
    NullObserver,
    Picker,
    PluginContractError,
    SchedulerProfile,
    ScoredEndpoint,
    Scorer,
    WeightedScorer,
)

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "library.md"
PROGRAM, OUTPUT = re.findall(r"```(?:python|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)


@dataclass
class Box:
    """An endpoint that cannot be hashed and compares by value."""

    size: int


class Keep(Filter[str, Any]):
    type = name = "keep"

    def __init__(self, keep: Callable[[Sequence[Any]], Any]) -> None:
        self._keep = keep

    def filter(self, request: str, endpoints: Sequence[Any], state: CycleState) -> list[Any]:
        kept: list[Any] = self._keep(endpoints)
        return kept


class InOrder(Scorer[str, Any]):
    type = name = "in-order"

    def score(self, request: str, endpoints: Sequence[Any], state: CycleState) -> list[float]:
        return [1.0 / number for number in range(1, len(endpoints) + 1)]


class First(Picker[str, Any]):
    type = name = "first"

    def pick(
        self, request: str, scored: Sequence[ScoredEndpoint[Any]], state: CycleState
    ) -> list[ScoredEndpoint[Any]]:
        return [max(scored, key=lambda each: each.score)]


def choose(
    endpoints: Sequence[Any],
    keep: Callable[[Sequence[Any]], Any],
    guards: GuardRails | None = None,
) -> Any:
    profile = SchedulerProfile(
        name="p",
        filters=[Keep(keep)],
        scorers=[WeightedScorer(InOrder())],
        picker=First(),
        guards=guards,
    )
    result = profile.run("a request", endpoints, CycleState())
    if result.error is not None:
        raise result.error
    return result.endpoints[0].endpoint


@pytest.mark.parametrize(
    "endpoints",
    [
        pytest.param([Box(1), Box(2), Box(3)], id="not hashable"),
        pytest.param([Box(1), Box(1), Box(1)], id="equal by value"),
        pytest.param([(1, 2), (3, 4), tuple(json.loads("[1, 2]"))], id="tuples"),
        pytest.param(["a", "b", "c"], id="strings"),
        pytest.param([7.5, 8.5, 9.5], id="numbers"),
    ],
)
def test_endpoints_of_any_class_are_told_apart_by_identity(endpoints: list[Any]) -> None:
    assert choose(endpoints, lambda given: given[1:]) is endpoints[1]
    assert choose(endpoints, list) is endpoints[0]


def test_removed_strings_are_named() -> None:
    with pytest.raises(NoEndpointsError, match="keep removed a, b"):
        choose(["a", "b"], lambda _: [])


@pytest.mark.parametrize(
    ("keep", "fault"),
    [
        pytest.param(lambda given: [given[0], given[0]], "an endpoint twice", id="twice"),
        pytest.param(lambda _: [Box(1)], "which it was not given", id="a copy"),
        pytest.param(lambda _: None, "returned NoneType", id="no list"),
    ],
)
def test_without_an_observer_a_broken_contract_raises(
    keep: Callable[[Sequence[Any]], Any], fault: str
) -> None:
    boxes = [Box(1), Box(2)]
    with pytest.raises(PluginContractError, match=fault) as raised:
        choose(boxes, keep)
    assert raised.value.__notes__ == ["raised by plugin 'keep' at Filter"]
    assert choose(boxes, keep, GuardRails(observer=NullObserver())) is boxes[0]


def test_without_an_observer_an_exception_is_what_the_plugin_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        choose([Box(1)], lambda _: 1 / 0)


def test_the_example_prints_what_its_page_says(tmp_path: Path) -> None:
    program = tmp_path / "parcels.py"
    program.write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout == OUTPUT


def test_the_example_passes_a_strict_type_checker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parcels.py").write_text(PROGRAM)
    wrong = PROGRAM.replace("each.largest >= request.size", "each.largest >= request.weight")
    (tmp_path / "wrong.py").write_text(wrong)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    output, _, status = api.run([*options, "parcels.py", "wrong.py"])
    assert status == 1
    assert 'error: "Parcel" has no attribute "weight"' in output
    assert "Found 1 error in 1 file" in output


def test_nothing_but_the_standard_library_is_needed() -> None:
    code = (
        "import sys, importlib.abc\n"
        "class Blocker(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        top = name.partition('.')[0]\n"
        "        if top != 'epp' and top not in sys.stdlib_module_names:\n"
        "            raise ImportError(f'{name} is not of the standard library')\n"
        "sys.meta_path.insert(0, Blocker())\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import epp.scheduling\n"
        "print(len(epp.scheduling.__all__))\n"
    )
    ran = subprocess.run([sys.executable, "-ISc", code], capture_output=True, text=True, check=True)
    assert int(ran.stdout) > 30
