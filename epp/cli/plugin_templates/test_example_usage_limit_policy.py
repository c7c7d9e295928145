from pathlib import Path

from epp.testing import check, load_plugin, make_plugin

FILE = Path(__file__).with_name("example_usage_limit_policy.py")
PLUGIN = load_plugin(FILE, "ExampleUsageLimitPolicy")


def test_it_keeps_its_contract() -> None:
    check(PLUGIN)


def test_only_negative_priorities_have_a_lower_ceiling() -> None:
    policy = make_plugin(PLUGIN, {"sheddableCeiling": 0.5})
    assert policy.ceilings(0.7, [10, 0, -1]) == [1.0, 1.0, 0.5]
