from pathlib import Path

from epp.testing import check, load_plugin, make_flow, make_plugin, make_request

FILE = Path(__file__).with_name("example_fairness_policy.py")
PLUGIN = load_plugin(FILE, "ExampleFairnessPolicy")


def test_it_keeps_its_contract() -> None:
    check(PLUGIN)


def test_the_flow_that_was_served_longest_ago_has_the_smallest_key() -> None:
    policy = make_plugin(PLUGIN)
    alice, bob, carol = (make_flow(name, [make_request()]) for name in ("alice", "bob", "carol"))
    policy.dispatched(alice, alice.head, now=5.0)
    policy.dispatched(bob, bob.head, now=3.0)
    keys = policy.keys([alice, bob, carol], now=6.0)
    assert keys[2] < keys[1] < keys[0]
