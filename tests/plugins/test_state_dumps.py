"""Every plugin with state dumps it, within bounds."""

from collections.abc import Mapping
from typing import Any, Final

import pytest
from plugins.stateful import state_of, subclasses_of

from epp.flow_control.sessions import SessionPlugin
from epp.scheduling import Plugin
from epp_plugins import PLUGINS
from epp_plugins.session_plugins import BUILDERS

NOT_DUMPED: Final[Mapping[str, str]] = {
    "DisaggProfileHandler": "which log lines were written; disagg_degraded_total counts them",
    "PdProfileHandler": "the same",
    "PredictedTimeRoomFilter": "which session its reservations, which end with it, belong to",
    "RoundRobinFairnessPolicy": "the next place in line; /debug/session has the order of flows",
}
"""Classes that keep something that says nothing to an operator, and what it is."""


def stateful() -> Mapping[str, type[Any]]:
    session_plugins = [each for each in BUILDERS.values() if isinstance(each, type)]
    kinds = subclasses_of([*PLUGINS, *session_plugins])
    return {each.__name__: each for each in kinds if state_of(each)}


STATEFUL: Final = stateful()


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_a_plugin_that_keeps_a_state_dumps_it(name: str) -> None:
    kind = STATEFUL[name]
    is_dumped = kind.dump_state not in {Plugin.dump_state, SessionPlugin.dump_state}
    assert is_dumped != (name in NOT_DUMPED), state_of(kind)


def test_every_exception_is_a_plugin_that_keeps_a_state() -> None:
    assert NOT_DUMPED.keys() <= STATEFUL.keys()


def test_the_search_finds_states_of_all_kinds() -> None:
    found = {"BurstPrefixCacheProducer", "NoHitLruScorer", "ProgramAwareFairness", "Proportion"}
    assert found | {"RenderedTokenProducer", "SessionAffinityScorer"} <= STATEFUL.keys()
    assert "QueueScorer" not in STATEFUL
