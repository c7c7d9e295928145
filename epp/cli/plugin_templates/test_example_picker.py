import random
from pathlib import Path

import pytest

from epp.testing import load_plugin, make_plugin, run_picker

ExamplePicker = load_plugin(Path(__file__).with_name("example_picker.py"), "ExamplePicker")


@pytest.mark.parametrize(
    ("tolerance", "want"),
    [
        pytest.param(0.0, {"best"}, id="only the best"),
        pytest.param(0.25, {"best", "near"}, id="what is near the best"),
    ],
)
def test_pick(tolerance: float, want: set[str]) -> None:
    plugin = make_plugin(ExamplePicker, {"tolerance": tolerance}, rng=random.Random(1))
    scores = {"best": 1.0, "near": 0.75, "far": 0.5}
    assert {run_picker(plugin, scores)[0] for _ in range(100)} == want
