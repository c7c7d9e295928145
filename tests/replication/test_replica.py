"""Knowledge of replicas about each other after losses, restarts, partitions and deaths."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from epp.replication.messages import MAX_MESSAGE_BYTES, VERSION, Message, PoolState, encode
from epp.replication.peers import MAX_PEERS
from epp.replication.plugin_states import FACTS_SECONDS
from epp.replication.plugins import CrossReplicaContributor, FactSharer, replica_key
from epp.replication.replica import HEARTBEATS, TICK_SECONDS, WHOLE_SECONDS
from epp.replication.traffic import Dropped
from epp.testing import make_endpoint
from replication.wires import LEASE_SECONDS, POOL, Clock, Node, Wire, pass_time, ticks


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def pair(wire: Wire, clock: Clock) -> tuple[Node, Node]:
    nodes = Node(wire, clock, "a", incarnation=1), Node(wire, clock, "b", incarnation=2)
    pass_time(wire, clock, nodes, 2 * TICK_SECONDS)
    return nodes


def message(
    sender: str = "z", *, incarnation: int = 5, sequence: int = 1, **fields: object
) -> bytes:
    given: dict[str, object] = {"recipient": "", "age_seconds": 0.0, "version": VERSION, **fields}
    return encode(
        Message(sender=sender, incarnation=incarnation, sequence=sequence, **given)  # type: ignore[arg-type] # fields of a message
    )


def test_the_other_one_knows_within_a_tick_what_is_in_flight(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 3)
    b.start(1)
    pass_time(wire, clock, pair, TICK_SECONDS)
    assert (b.shared, a.shared) == ([3, 0], [0, 1])
    assert (a.own, b.own) == ([3, 0], [0, 1])
    a.end(0, 2)
    pass_time(wire, clock, pair, TICK_SECONDS)
    assert b.shared == [1, 0]
    a.end(0)
    pass_time(wire, clock, pair, TICK_SECONDS)
    assert b.shared == [0, 0]


def test_three_replicas_add_up_and_send_only_their_own(wire: Wire, clock: Clock) -> None:
    nodes = [Node(wire, clock, name, incarnation=n) for n, name in enumerate("abc")]
    for count, node in enumerate(nodes, start=1):
        node.start(0, count)
    pass_time(wire, clock, nodes, 0.2)
    assert [node.shared[0] for node in nodes] == [5, 4, 3]
    assert [node.own[0] for node in nodes] == [1, 2, 3]


@pytest.fixture
def siblings(wire: Wire, clock: Clock) -> list[Node]:
    names = ("host/0", "host/1")
    nodes = [Node(wire, clock, name, incarnation=n, siblings=names) for n, name in enumerate(names)]
    pass_time(wire, clock, nodes, 2 * TICK_SECONDS)
    return nodes


def test_siblings_tell_their_requests_once_a_second_and_load_no_endpoint_with_them(
    wire: Wire, clock: Clock, siblings: list[Node]
) -> None:
    one, other = siblings
    one.start(0, 3)
    pass_time(wire, clock, siblings, 2 * TICK_SECONDS)
    assert other.replica.readings()["host/0"].in_flight == 0
    pass_time(wire, clock, siblings, WHOLE_SECONDS)
    assert other.replica.readings()["host/0"].in_flight == 3
    again = make_endpoint("e0")
    other.share.endpoint_added(again)
    assert (other.shared, again.load.shared_in_flight) == ([0, 0], 0)
    other.share.endpoint_removed(again)
    other.replica.left("host/0")
    assert (other.shared, again.load.in_flight) == ([0, 0], 0)


def test_siblings_tell_replicas_of_other_hosts_at_once(
    wire: Wire, clock: Clock, siblings: list[Node]
) -> None:
    nodes = [*siblings, Node(wire, clock, "other", incarnation=9, siblings=["other"])]
    pass_time(wire, clock, nodes, 2 * TICK_SECONDS)
    for node in nodes:
        node.start(0)
    pass_time(wire, clock, nodes, TICK_SECONDS)
    assert [node.shared[0] for node in nodes] == [1, 1, 2]


def test_siblings_that_share_facts_alone_tell_them_within_a_tenth_of_a_second(
    wire: Wire, clock: Clock
) -> None:
    diary = Diary()
    node = Node(wire, clock, "host/0", plugins=[diary], siblings=["host/0", "host/1"])
    ticks = 0
    for number in range(20):
        diary.note(f"word {number}")
        noted_at = clock.now
        while diary.new:
            clock.now += node.replica.tick()
            ticks += 1
        assert clock.now - noted_at <= FACTS_SECONDS + TICK_SECONDS
    assert ticks <= 2 * 20  # some are for heartbeats


def test_siblings_whose_plugins_contribute_tell_it_every_tick(wire: Wire, clock: Clock) -> None:
    node = Node(wire, clock, "host/0", plugins=[Part()], siblings=["host/0"])
    assert node.replica.tick() == TICK_SECONDS


def test_more_facts_than_one_message_has_are_sent_tick_by_tick(wire: Wire, clock: Clock) -> None:
    class Long(Diary):
        def new_facts(self, max_bytes: int) -> bytes:
            return super().new_facts(max_bytes).ljust(max_bytes) if self.new else b""

    diary = Long()
    node = Node(wire, clock, "host/0", plugins=[diary], siblings=["host/0"])
    diary.note("x")
    assert node.replica.tick() == TICK_SECONDS
    clock.now += TICK_SECONDS
    assert node.replica.tick() > TICK_SECONDS


def test_the_pause_ends_when_a_heartbeat_is_due(wire: Wire, clock: Clock) -> None:
    node = Node(wire, clock, "host/0", siblings=["host/0"])
    gaps, before, sent = [], clock.now, 0
    while clock.now < 105.0:
        pause = node.replica.tick()
        if node.replica.traffic.sent > sent:
            sent = node.replica.traffic.sent
            gaps.append(clock.now - before)
            before = clock.now
        clock.now += pause
    assert max(gaps) <= LEASE_SECONDS / HEARTBEATS + TICK_SECONDS


def test_a_lost_message_heals_with_the_next_whole_one(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 2)
    wire.loses = lambda _: True
    pass_time(wire, clock, pair, 3 * TICK_SECONDS)
    wire.loses = lambda _: False
    a.start(1)
    pass_time(wire, clock, pair, TICK_SECONDS)
    assert b.shared == [0, 1]
    assert b.replica.traffic.dropped[Dropped.LOST] >= 1
    pass_time(wire, clock, pair, WHOLE_SECONDS)
    assert b.shared == [2, 1]


def test_a_lost_end_heals_too(wire: Wire, clock: Clock, pair: tuple[Node, Node]) -> None:
    a, b = pair
    a.start(0, 2)
    pass_time(wire, clock, pair, TICK_SECONDS)
    a.end(0, 2)
    wire.loses = lambda _: True
    pass_time(wire, clock, pair, TICK_SECONDS)
    wire.loses = lambda _: False
    assert b.shared == [2, 0]
    pass_time(wire, clock, pair, WHOLE_SECONDS + TICK_SECONDS)
    assert b.shared == [0, 0]


def test_a_killed_replica_frees_its_load_when_its_lease_ends(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 4)
    pass_time(wire, clock, pair, TICK_SECONDS)
    pass_time(wire, clock, [b], LEASE_SECONDS - 2 * TICK_SECONDS)
    assert b.shared == [4, 0]
    pass_time(wire, clock, [b], 4 * TICK_SECONDS)
    assert b.shared == [0, 0]
    assert len(b.replica.peers) == 0


def test_a_replica_that_stops_frees_its_load_at_once(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 4)
    pass_time(wire, clock, pair, TICK_SECONDS)
    a.replica._send(leaves=True)
    wire.deliver()
    assert (b.shared, len(b.replica.peers)) == ([0, 0], 0)


def test_a_carrier_that_sees_a_replica_end_frees_its_load_at_once(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 4)
    pass_time(wire, clock, pair, TICK_SECONDS)
    b.replica.left("a")
    b.replica.left("nobody")
    assert b.shared == [0, 0]


def test_a_restarted_replica_fences_its_former_process(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 4)
    pass_time(wire, clock, pair, TICK_SECONDS)
    again = Node(wire, clock, "a", incarnation=7)
    again.start(1)
    pass_time(wire, clock, [again, b], TICK_SECONDS)
    assert b.shared == [0, 1]
    # The former process still runs, or its last messages are late.
    a.start(0)
    pass_time(wire, clock, [a, again, b], 5 * TICK_SECONDS)
    assert b.shared == [0, 1]
    assert b.replica.traffic.dropped[Dropped.REPLACED] >= 1


def test_a_replica_ignores_another_one_of_its_name(wire: Wire, clock: Clock) -> None:
    one, other = Node(wire, clock, "a", incarnation=1), Node(wire, clock, "a", incarnation=2)
    other.start(0)
    pass_time(wire, clock, [one, other], 0.1)
    assert one.shared == [0, 0]
    assert one.replica.traffic.dropped[Dropped.SAME_NAME] > 0
    assert len(one.replica.peers) == 0


def test_an_overtaken_message_changes_nothing(pair: tuple[Node, Node]) -> None:
    _, b = pair
    key = replica_key(b.endpoints[0])
    newer = message(sequence=9, pools=[PoolState(POOL, True, {key: 2})])
    older = message(sequence=8, pools=[PoolState(POOL, True, {key: 5})])
    for each in (newer, older):
        b.replica.received(each)
    assert b.shared == [2, 0]
    assert b.replica.traffic.dropped[Dropped.OVERTAKEN] == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"\xff\x00 nonsense", Dropped.MALFORMED, id="no message"),
        pytest.param(b"", Dropped.MALFORMED, id="nothing"),
        pytest.param(message()[:-3], Dropped.MALFORMED, id="cut off"),
        pytest.param(b"\x94\x01\xa1\xff\x05\xa0", Dropped.MALFORMED, id="a name that is no text"),
        pytest.param(message(version=VERSION + 1), Dropped.OTHER_VERSION, id="another version"),
        pytest.param(b"\x00" * (MAX_MESSAGE_BYTES + 1), Dropped.TOO_LONG, id="too long"),
        pytest.param(
            encode([VERSION, "z", 5, "", 1, 0.0, False, False, [["default", True, {"x": 1}]]]),
            Dropped.MALFORMED,
            id="numbers by name",
        ),
    ],
)
def test_what_cannot_be_used_is_counted_and_ignored(
    pair: tuple[Node, Node], data: bytes, reason: Dropped
) -> None:
    _, b = pair
    b.replica.received(data)
    assert +b.replica.traffic.dropped == {reason: 1}
    assert b.replica.peers.get("z") is None


def test_a_later_version_may_add_fields_at_the_end(pair: tuple[Node, Node]) -> None:
    _, b = pair
    fields = msgspec.to_builtins(msgspec.msgpack.decode(message()))
    b.replica.received(encode([*fields, "something new"]))
    assert b.replica.peers.get("z") is not None


@given(st.binary(max_size=200))
def test_no_bytes_are_an_error(data: bytes) -> None:
    node = Node(Wire(), Clock(), "a")
    node.replica.received(data)
    assert node.shared == [0, 0]


def test_negative_numbers_count_as_none(pair: tuple[Node, Node]) -> None:
    _, b = pair
    key = replica_key(b.endpoints[0])
    b.replica.received(message(pools=[PoolState(POOL, True, {key: -4})]))
    assert (b.shared, b.endpoints[0].load.in_flight) == ([0, 0], 0)


def test_pools_that_are_not_served_here_are_ignored(pair: tuple[Node, Node]) -> None:
    _, b = pair
    key = replica_key(b.endpoints[0])
    b.replica.received(message(pools=[PoolState("another", True, {key: 4})]))
    assert b.shared == [0, 0]


def test_messages_to_another_replica_are_not_read(pair: tuple[Node, Node]) -> None:
    _, b = pair
    b.replica.received(message(recipient="c"))
    assert b.replica.peers.get("z") is None


def test_more_replicas_than_allowed_are_ignored(pair: tuple[Node, Node]) -> None:
    _, b = pair
    for number in range(MAX_PEERS + 3):
        b.replica.received(message(f"r{number}"))
    assert len(b.replica.peers) == MAX_PEERS
    assert b.replica.traffic.dropped[Dropped.TOO_MANY_REPLICAS] == 4  # "a" is one of them


def test_the_log_names_replicas_that_are_too_many_once(pair: tuple[Node, Node]) -> None:
    _, b = pair
    with capture_logs() as logs:
        for number in (*range(MAX_PEERS), MAX_PEERS - 1):
            b.replica.received(message(f"r{number}"))
    ignored = [each for each in logs if each["event"] == "replica is ignored"]
    assert [(each["replica"], each["reason"]) for each in ignored] == [
        (f"r{MAX_PEERS - 1}", f"{MAX_PEERS} others are known already")
    ]


@pytest.mark.parametrize("age", [float("nan"), -1e9, 1e9])
def test_a_change_of_an_impossible_age_counts_as_one_of_unknown_age(
    pair: tuple[Node, Node], age: float
) -> None:
    _, b = pair
    load, key = b.endpoints[0].load, replica_key(b.endpoints[0])
    for sequence, number in enumerate((1, 3), start=1):
        states = [PoolState(POOL, True, {key: number})]
        b.replica.received(message(sequence=sequence, age_seconds=age, pools=states))
    load.observe(waiting=0, running=3, kv_cache_usage=0.0, requested_at=b.clock.now + 1)
    assert (load.waiting_requests, load.running_requests) == (0, 3)


def test_an_endpoint_that_joins_later_gets_what_others_have_there(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    new = make_endpoint("new")
    a.share.endpoint_added(new)
    new.load.start(clock.now)
    pass_time(wire, clock, pair, TICK_SECONDS)
    same = make_endpoint("new")
    b.share.endpoint_added(same)
    assert same.load.shared_in_flight == 1
    b.share.endpoint_removed(same)
    assert same.load.shared_in_flight == 0
    b.share.endpoint_added(same)
    assert same.load.shared_in_flight == 1


def test_a_server_that_takes_over_a_name_gets_nothing_of_the_former(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 3)
    pass_time(wire, clock, pair, TICK_SECONDS)
    b.share.endpoint_removed(b.endpoints[0])
    other = make_endpoint("e0", address="10.9.9.9:8000")
    b.share.endpoint_added(other)
    pass_time(wire, clock, pair, WHOLE_SECONDS)
    assert (other.load.shared_in_flight, b.shared[0]) == (0, 0)


def test_requests_on_an_endpoint_that_has_left_are_reported_until_they_end(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 2)
    a.share.endpoint_removed(a.endpoints[0])
    pass_time(wire, clock, pair, TICK_SECONDS)
    assert b.shared == [2, 0]
    a.end(0, 2)
    pass_time(wire, clock, pair, 2 * TICK_SECONDS)
    assert b.shared == [0, 0]
    assert len(a.share._tracked) == 1


def test_an_idle_replica_sends_heartbeats_alone(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, _ = pair
    before = a.replica.traffic.sent
    pass_time(wire, clock, pair, 10.0)
    sent = a.replica.traffic.sent - before
    # Each second one with everything; otherwise one each eighth of a lease.
    assert 10 <= sent <= 10 * (HEARTBEATS / LEASE_SECONDS + 1)


def test_after_a_partition_both_know_everything_again(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0, 2)
    b.start(1, 5)
    pass_time(wire, clock, pair, TICK_SECONDS)
    a.carrier.is_cut = True
    pass_time(wire, clock, pair, LEASE_SECONDS + 0.1)
    assert (a.shared, b.shared) == ([0, 0], [0, 0])
    assert (a.own, b.own) == ([2, 0], [0, 5])
    a.end(0)
    b.end(1, 5)
    b.start(0)
    a.carrier.is_cut = False
    a.replica.joined()
    pass_time(wire, clock, pair, 2 * TICK_SECONDS)
    assert (a.shared, b.shared) == ([1, 0], [1, 0])


EVENTS = st.lists(
    st.tuples(st.sampled_from(["start", "end"]), st.integers(0, 2), st.integers(0, 1))
    | st.tuples(st.sampled_from(["lose", "carry", "cut", "mend", "restart"]), st.integers(0, 2))
    | st.tuples(st.just("pass"), st.floats(0.02, 3.0)),
    max_size=25,
)


@settings(max_examples=60)
@given(EVENTS)
def test_whatever_happens_no_number_is_negative_and_all_are_right_in_the_end(
    events: list[tuple[str, int] | tuple[str, int, int]],
) -> None:
    wire, clock = Wire(), Clock()
    nodes = [Node(wire, clock, name, incarnation=n) for n, name in enumerate("abc")]
    incarnation = 10
    for event in events:
        match event:
            case ("start", node, endpoint):
                nodes[node].start(endpoint)
            case ("end", node, endpoint):
                nodes[node].end(endpoint, min(1, nodes[node].own[endpoint]))
            case ("lose", _):
                wire.loses = lambda _: True
            case ("carry", _):
                wire.loses = lambda _: False
            case ("cut", node):
                nodes[node].carrier.is_cut = True
            case ("mend", node):
                nodes[node].carrier.is_cut = False
                nodes[node].replica.joined()
            case ("restart", node):
                incarnation += 1
                wire.ends.remove(nodes[node].carrier)
                nodes[node] = Node(wire, clock, "abc"[node], incarnation=incarnation)
            case ("pass", seconds):
                pass_time(wire, clock, nodes, seconds)
        for each in nodes:
            assert all(number >= 0 for number in (*each.shared, *each.own))
            assert all(e.load.waiting_requests >= 0 for e in each.endpoints)
    wire.loses = lambda _: False
    for each in nodes:
        each.carrier.is_cut = False
        each.replica.joined()
    pass_time(wire, clock, nodes, LEASE_SECONDS + WHOLE_SECONDS)
    totals = [sum(each.own[e] for each in nodes) for e in (0, 1)]
    for each in nodes:
        assert [own + s for own, s in zip(each.own, each.shared, strict=True)] == totals


class Diary(FactSharer):
    """Tells words."""

    type = "diary"

    def __init__(self, name: str = "diary") -> None:
        self.name = name
        self.known: list[str] = []
        self.new: list[str] = []
        self.is_sharing = False

    def note(self, word: str) -> None:
        self.known.append(word)
        if self.is_sharing:
            self.new.append(word)

    def start_sharing(self) -> None:
        assert not self.is_sharing
        self.is_sharing = True

    def new_facts(self, max_bytes: int) -> bytes:
        new, self.new = self.new, []
        return " ".join(new).encode()

    def all_facts(self, max_bytes: int) -> Iterator[bytes]:
        return iter([word.encode() for word in self.known])

    def learn(self, facts: bytes) -> None:
        self.known += facts.decode().split()


class Part(CrossReplicaContributor):
    """Contributes a number."""

    type = "part"

    def __init__(self) -> None:
        self.name = "part"
        self.own = 0
        self.others: dict[str, int] = {}
        self.fails = False

    def contribution(self) -> bytes:
        if self.fails:
            raise RuntimeError("no")
        return str(self.own).encode()

    def receive(self, replica: str, contribution: bytes) -> None:
        self.others[replica] = int(contribution)

    def replica_left(self, replica: str) -> None:
        self.others.pop(replica, None)


def test_facts_are_sent_once_and_not_passed_on(wire: Wire, clock: Clock) -> None:
    diaries = [Diary(), Diary(), Diary()]
    nodes = [
        Node(wire, clock, name, incarnation=n, plugins=[diary])
        for n, (name, diary) in enumerate(zip("abc", diaries, strict=True))
    ]
    pass_time(wire, clock, nodes, 1.0)
    diaries[0].note("x")
    diaries[1].note("y")
    pass_time(wire, clock, nodes, 1.0)
    assert [sorted(diary.known) for diary in diaries] == [["x", "y"]] * 3


def test_a_replica_that_joins_learns_everything_from_the_oldest_one(
    wire: Wire, clock: Clock
) -> None:
    diaries = [Diary(), Diary()]
    nodes = [
        Node(wire, clock, name, incarnation=n, plugins=[diary])
        for n, (name, diary) in enumerate(zip("ab", diaries, strict=True))
    ]
    pass_time(wire, clock, nodes, 0.5)
    diaries[0].note("x")
    diaries[1].note("y")
    pass_time(wire, clock, nodes, 0.5)
    late = Diary()
    nodes.append(Node(wire, clock, "c", incarnation=5, plugins=[late]))
    pass_time(wire, clock, nodes, 0.5)
    assert sorted(late.known) == ["x", "y"]  # once: of the two, one answers


def test_a_replica_that_joins_when_the_oldest_one_has_just_died_learns_from_another_one(
    wire: Wire, clock: Clock
) -> None:
    diaries = [Diary(), Diary()]
    oldest, other = [
        Node(wire, clock, name, incarnation=n, plugins=[diary])
        for n, (name, diary) in enumerate(zip("ab", diaries, strict=True))
    ]
    pass_time(wire, clock, [oldest, other], 0.5)
    diaries[1].note("y")
    pass_time(wire, clock, [oldest, other], 0.5)
    oldest.carrier.is_cut = True
    late = Diary()
    nodes = [other, Node(wire, clock, "c", incarnation=5, plugins=[late])]
    # It hears of the oldest one, whose lease has not ended, as does a replica that joins earlier.
    nodes[1].replica.received(message("a", incarnation=0))
    pass_time(wire, clock, nodes, 0.5)
    assert late.known == []
    pass_time(wire, clock, nodes, LEASE_SECONDS)
    assert late.known == ["y"]


def test_a_replica_that_restarts_with_an_earlier_clock_is_heard_after_the_lease(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0)
    pass_time(wire, clock, pair, TICK_SECONDS)
    a.carrier.is_cut = True
    again = Node(wire, clock, "a", incarnation=0)
    again.start(1)
    pass_time(wire, clock, [again, b], LEASE_SECONDS / 2)
    assert b.shared == [1, 0]
    pass_time(wire, clock, [again, b], LEASE_SECONDS)
    assert b.shared == [0, 1]


def test_a_plugin_that_a_reload_adds_learns_everything(wire: Wire, clock: Clock) -> None:
    old, new = Diary(), Diary()
    a = Node(wire, clock, "a", incarnation=1, plugins=[old])
    b = Node(wire, clock, "b", incarnation=2)
    pass_time(wire, clock, [a, b], 0.5)
    old.note("x")
    pass_time(wire, clock, [a, b], 0.5)
    b.share.use_plugins([new], 0.0)
    pass_time(wire, clock, [a, b], 0.5)
    assert new.known == ["x"]
    b.share.use_plugins([new], 0.0)  # it stays, so it begins to tell only once
    new.note("y")
    pass_time(wire, clock, [a, b], 0.5)
    assert old.known == ["x", "y"]


def test_plugins_of_one_name_and_different_types_share_nothing(wire: Wire, clock: Clock) -> None:
    class Other(Diary):
        type = "other"

    mine, theirs = Diary(), Other()
    nodes = [
        Node(wire, clock, "a", incarnation=1, plugins=[mine]),
        Node(wire, clock, "b", incarnation=2, plugins=[theirs]),
    ]
    pass_time(wire, clock, nodes, 0.2)
    mine.note("x")
    pass_time(wire, clock, nodes, 0.2)
    assert theirs.known == []


def test_contributions_replace_each_other_and_go_with_their_replica(
    wire: Wire, clock: Clock
) -> None:
    parts = [Part(), Part()]
    nodes = [
        Node(wire, clock, name, incarnation=n, plugins=[part])
        for n, (name, part) in enumerate(zip("ab", parts, strict=True))
    ]
    parts[0].own = 3
    pass_time(wire, clock, nodes, 0.1)
    assert parts[1].others == {"a": 3}
    parts[0].own = 5
    wire.loses = lambda _: True
    pass_time(wire, clock, nodes, 0.1)
    wire.loses = lambda _: False
    pass_time(wire, clock, nodes, WHOLE_SECONDS)
    assert parts[1].others == {"a": 5}
    pass_time(wire, clock, nodes[1:], LEASE_SECONDS + 0.1)
    assert parts[1].others == {}


def test_contributions_keep_the_interval_of_the_configuration(wire: Wire, clock: Clock) -> None:
    part = Part()
    node = Node(wire, clock, "a")
    node.share.use_plugins([part], 0.5)
    states = []
    for _ in ticks(clock, 1.0):
        part.own += 1
        state = node.share.changes(clock.now, is_whole=False)
        states += [] if state is None else state.plugins
    assert len(states) == 2


def test_what_is_of_the_queues_is_sent_by_their_owner_only(wire: Wire, clock: Clock) -> None:
    class OfQueues(Part):
        is_of_queues = True

    parts = [OfQueues(), OfQueues()]
    parts[0].own = parts[1].own = 3
    nodes = [
        Node(wire, clock, name, incarnation=n, plugins=[part])
        for n, (name, part) in enumerate(zip("ab", parts, strict=True))
    ]
    nodes[0].share.owns_queues = lambda: False
    pass_time(wire, clock, nodes, WHOLE_SECONDS)
    assert (parts[0].others, parts[1].others) == ({"b": 3}, {})
    nodes[0].share.owns_queues = lambda: True  # the owner has ended
    pass_time(wire, clock, nodes, 0.1)
    assert parts[1].others == {"a": 3}


def test_a_plugin_that_fails_harms_nobody(wire: Wire, clock: Clock) -> None:
    part, other = Part(), Part()
    part.fails = True
    a = Node(wire, clock, "a", incarnation=1, plugins=[part])
    b = Node(wire, clock, "b", incarnation=2, plugins=[other])
    a.start(0)
    pass_time(wire, clock, [a, b], 0.1)
    assert b.shared == [1, 0]
    assert other.others == {}


def test_the_end_of_a_pool_forgets_what_others_sent(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.start(0)
    pass_time(wire, clock, pair, TICK_SECONDS)
    b.share.end()
    assert b.shared == [0, 0]
    pass_time(wire, clock, pair, WHOLE_SECONDS)
    assert b.shared == [0, 0]


def test_while_the_carrier_is_away_nothing_is_queued(
    wire: Wire, clock: Clock, pair: tuple[Node, Node]
) -> None:
    a, b = pair
    a.carrier.is_cut = True
    sent = a.replica.traffic.sent
    a.start(0)
    pass_time(wire, clock, [a], 1.0)
    assert a.replica.traffic.sent == sent
    a.carrier.is_cut = False
    pass_time(wire, clock, pair, TICK_SECONDS)
    assert b.shared == [1, 0]
