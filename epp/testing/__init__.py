"""Test helpers for plugin authors: builders of endpoints, requests and profiles, and a harness.

Every argument of a builder has a default, so that a test sets only the values it depends on. The
harness runs a plugin and raises AssertionError if it breaks the contract of its extension point::

    endpoints = make_endpoints({"a": {"waiting_requests": 7}, "b": {}})
    scorer = make_plugin(QueueScorer)
    assert score_table(scorer, make_request(), endpoints) == {"a": 0.0, "b": 1.0}
"""

from epp.testing.builders import (
    make_endpoint,
    make_endpoints,
    make_profile,
    make_request,
    make_scored,
    make_state,
)
from epp.testing.flows import make_flow
from epp.testing.harness import (
    check,
    load_plugin,
    make_plugin,
    run_filter,
    run_picker,
    run_profile,
    score_table,
)

__all__ = [
    "check",
    "load_plugin",
    "make_endpoint",
    "make_endpoints",
    "make_flow",
    "make_plugin",
    "make_profile",
    "make_request",
    "make_scored",
    "make_state",
    "run_filter",
    "run_picker",
    "run_profile",
    "score_table",
]
