"""A plugin that fails to share its counts harms neither its worker nor the grants of the others."""

from collections.abc import Callable

from structlog.testing import capture_logs

from epp.replication.plugins import CrossReplicaContributor
from epp.scheduling import GuardRails, NullObserver
from epp.workers.flow_accounts import FlowAccounts


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


def accounts(*names: str) -> tuple[FlowAccounts, list[Contributor]]:
    made = FlowAccounts()
    plugins = [Contributor(name) for name in names]
    made.use(plugins, GuardRails(observer=NullObserver(), disable_after=0))
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
