"""A plugin that fails to share its counts harms neither its worker nor the grants of the others."""

from collections.abc import Callable, Sequence

from structlog.testing import capture_logs

from epp.flow_control import SaturationDetector
from epp.replication.plugins import CrossReplicaContributor
from epp.request_control.plugins import EndCause, PreRequest, ResponseComplete
from epp.scheduling import (
    CycleState,
    Endpoint,
    GuardRails,
    LLMRequest,
    NullObserver,
    SchedulingResult,
)
from epp.testing import make_endpoint, make_request
from epp.workers.flow_accounts import FlowAccounts, Grant

GUARDS = GuardRails(observer=NullObserver(), disable_after=0)


class Contributor(CrossReplicaContributor):
    """Fails if it is called ``bad``."""

    type = "test-contributor"

    def __init__(self, name: str) -> None:
        self.name = name
        self.gone: list[str] = []

    def contribution(self) -> bytes:
        if self.name == "bad":
            raise RuntimeError("a bug")
        return b"part"

    def receive(self, replica: str, contribution: bytes) -> None:
        raise AssertionError("nothing is sent here")

    def replica_left(self, replica: str) -> None:
        if self.name == "bad":
            raise RuntimeError("a bug")
        self.gone.append(replica)


class Counter(CrossReplicaContributor, SaturationDetector, PreRequest, ResponseComplete):
    """Counts requests as a contributor and as a policy."""

    type = "test-counter"

    def __init__(self) -> None:
        self.name = "counter"
        self.begun = 0
        self.ended: list[EndCause] = []

    def contribution(self) -> bytes:
        return b""

    def receive(self, replica: str, contribution: bytes) -> None:
        raise AssertionError("nothing is sent here")

    def replica_left(self, replica: str) -> None:
        raise AssertionError("nobody leaves here")

    def saturation(self, endpoints: Sequence[Endpoint]) -> float:
        return 0.0

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        self.begun += 1

    def response_complete(
        self, request: LLMRequest, served_by: Endpoint, cause: EndCause, state: CycleState
    ) -> None:
        self.ended.append(cause)


def test_a_request_ends_at_the_plugins_where_it_began_although_a_reload_has_replaced_them() -> None:
    made, (before, after) = FlowAccounts(), (Counter(), Counter())
    made.use([before], GUARDS)
    grant = Grant(make_request(), make_endpoint("a"))
    made.begin(grant, 0.0)
    made.use([after], GUARDS)
    made.settle(grant, 1.0)
    made.finish(grant, EndCause.COMPLETED)
    assert before.begun == 2  # once as each of the two
    assert before.ended == [EndCause.REFUSED, EndCause.COMPLETED]
    assert (after.begun, after.ended) == (0, [])
    assert grant.endpoint.load.in_flight == 0


def accounts(*names: str) -> tuple[FlowAccounts, list[Contributor]]:
    made = FlowAccounts()
    plugins = [Contributor(name) for name in names]
    made.use(plugins, GUARDS)
    return made, plugins


def events(call: Callable[[], object]) -> list[tuple[str, str]]:
    with capture_logs() as logs:
        call()
    return [(each["event"], each["plugin"]) for each in logs]


def test_the_parts_of_the_other_plugins_are_sent() -> None:
    made, _ = accounts("bad", "good")
    with capture_logs() as logs:
        assert made.news() == {"good": b"part"}
    assert [each["event"] for each in logs] == ["plugin failed to share its state"]


def test_the_other_plugins_forget_a_worker_that_has_ended() -> None:
    made, (_, good) = accounts("bad", "good")
    assert events(lambda: made.left("host/1")) == [("plugin failed to forget a worker", "bad")]
    assert good.gone == ["host/1"]
