from pathlib import Path

import pytest

from epp.testing import check, load_plugin, make_endpoint, make_plugin, make_request, make_state

FILE = Path(__file__).with_name("example_stage_decider.py")
PLUGIN = load_plugin(FILE, "ExampleStageDecider")


def test_it_keeps_its_contract() -> None:
    check(PLUGIN)


@pytest.mark.parametrize(
    ("prompt_bytes", "want"),
    [
        pytest.param(11, True, id="longer"),
        pytest.param(10, False, id="as long as allowed"),
        pytest.param(0, False, id="no prompt"),
    ],
)
def test_long_prompts_are_wanted(prompt_bytes: int, want: bool) -> None:
    decider = make_plugin(PLUGIN, {"maxBytes": 10})
    request = make_request(prompt=b"x" * prompt_bytes)
    assert decider.wants_stage(request, make_endpoint(), make_state()) is want
    assert decider.wants_stage(request, None, make_state()) is want
