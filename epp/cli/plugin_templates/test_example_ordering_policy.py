from pathlib import Path

import pytest

from epp.testing import check, load_plugin, make_flow, make_plugin, make_request

FILE = Path(__file__).with_name("example_ordering_policy.py")
PLUGIN = load_plugin(FILE, "ExampleOrderingPolicy")


def test_it_keeps_its_contract() -> None:
    check(PLUGIN)


@pytest.mark.parametrize(
    ("body_bytes", "want"),
    [
        pytest.param(99, 0, id="short"),
        pytest.param(100, 1, id="one step longer"),
        pytest.param(1000, 10, id="long"),
    ],
)
def test_a_request_is_ordered_by_the_length_of_its_body(body_bytes: int, want: int) -> None:
    policy = make_plugin(PLUGIN, {"bytesPerStep": 100})
    flow = make_flow("alice", [make_request(prompt=b"x" * body_bytes)])
    assert policy.key(flow.head) == want
