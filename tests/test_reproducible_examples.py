"""The examples of a property test depend on the test alone."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Hypothesis would ignore a module with more than a few hundred.
CONSTANTS = f"NUMBERS = {tuple(range(1_000_000, 1_000_500))}"


def examples() -> list[int]:
    drawn = []

    @given(st.integers(0, 1 << 40))
    def draw(number: int) -> None:
        drawn.append(number)

    draw()
    return drawn


def test_examples_are_the_same_whatever_modules_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = examples()
    path = tmp_path / "constants.py"
    path.write_text(CONSTANTS)
    spec = spec_from_file_location("constants_of_another_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, spec.name, module)
    assert examples() == before
    assert len(set(before)) > 50
