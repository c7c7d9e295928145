"""A request limited to a part of the pool waits while that part is full."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

import pytest
from flow_control.driven import Driven

from epp.flow_control import Outcome, SaturationDetector
from epp.flow_control.sessions import ExtensionPoints, Job, Node, SessionPlugin, Task
from epp.scheduling import Endpoint

MAX_EACH = 2


class CountingDetector(SaturationDetector):
    """Saturation: requests in flight per ``MAX_EACH`` of each endpoint."""

    type: ClassVar[str] = "counting-detector"
    name = "counting"

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        in_flight = sum(endpoint.load.in_flight for endpoint in endpoints)
        return in_flight / (MAX_EACH * len(endpoints))


class FirstForAll(SessionPlugin):
    """Limits all flows except ``vip`` to the first endpoint."""

    name = "first-for-all"

    def on_configure(self, dispatcher: ExtensionPoints) -> None:
        dispatcher.add_predicate_fn(self._refusal)

    def _refusal(self, task: Task, _job: Job, node: Node) -> str | None:
        if task.namespace == "vip" or node.name == "default/e-0":
            return None
        return f"{node.name} is for others"


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven(endpoints=3)
    with made.loop.running():
        made.use(made.settings(plugins=(FirstForAll(),), detector=CountingDetector()))
        yield made


def test_it_waits_though_the_pool_has_room(driven: Driven) -> None:
    went = [driven.ask(f"r{n}") for n in range(MAX_EACH)]
    assert [each.endpoint for each in went] == [driven.pool[0]] * MAX_EACH
    waits = driven.ask("one more")
    driven.loop.settle()
    assert waits.ended == []
    assert waits.queued is not None
    assert list(driven.control.reasons(waits.queued)) == [
        (
            "the saturation of the endpoints that it is limited to (1 of the pool) is 1.00, it is"
            " dispatched below 1.00"
        ),
        "default/e-1 is for others",
        "default/e-2 is for others",
    ]


def test_it_keeps_nobody_from_the_rest(driven: Driven) -> None:
    for n in range(MAX_EACH + 1):
        driven.ask(f"r{n}")
    vip = driven.ask("anywhere", "vip")
    driven.loop.settle()
    assert vip.ended == [Outcome.DISPATCHED]
    assert vip.endpoint in driven.pool[1:]


def test_it_goes_when_its_part_has_room(driven: Driven) -> None:
    first = driven.ask("r0")
    driven.ask("r1")
    waits = driven.ask("one more")
    driven.loop.settle()
    assert waits.ended == []
    driven.finish(first)
    driven.loop.settle()
    assert waits.ended == [Outcome.DISPATCHED]
    assert waits.endpoint is driven.pool[0]


def test_what_is_allowed_everywhere_is_judged_by_the_whole_pool(driven: Driven) -> None:
    went = [driven.ask(f"v{n}", "vip") for n in range(3 * MAX_EACH)]
    assert all(each.ended == [Outcome.DISPATCHED] for each in went)
    assert driven.ask("one more", "vip").ended == []
