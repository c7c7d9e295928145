"""The victims of the solver, compared with a simple search."""

from collections.abc import Sequence

from flow_control.sessions.clusters import Bench, room
from hypothesis import example, given
from hypothesis import strategies as st

from epp.flow_control.sessions import Queue, Task

Victim = tuple[str, int]
"""Its node and its size."""


def places(capacities: dict[str, int], running: Sequence[Victim], sizes: Sequence[int]) -> bool:
    """Return whether tasks of these sizes fit, each on the first node with capacity."""
    free = dict(capacities)
    for node, size in running:
        free[node] -= size
    for size in sizes:
        fitting = [name for name in sorted(free) if free[name] >= size]
        if not fitting:
            return False
        free[fitting[0]] -= size
    return True


def taken_one_by_one(
    capacities: dict[str, int], victims: Sequence[Victim], sizes: Sequence[int]
) -> set[int] | None:
    """Evict the last victim first until the tasks fit, then spare each that is not needed."""

    def fit(gone: set[int]) -> bool:
        left = [victim for place, victim in enumerate(victims) if place not in gone]
        return places(capacities, left, sizes)

    gone: set[int] = set()
    for place in reversed(range(len(victims))):
        gone.add(place)
        if fit(gone):
            for each in sorted(gone)[1:]:  # the one taken last made it fit
                if fit(gone - {each}):
                    gone.remove(each)
            return gone
    return None


@st.composite
def full_clusters(draw: st.DrawFn, largest: int) -> tuple[dict[str, int], list[Victim], list[int]]:
    """Nodes without capacity for a gang, and the running jobs."""
    size = st.integers(1, largest)
    capacities: dict[str, int] = {}
    victims: list[Victim] = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        sizes = draw(st.lists(size, min_size=1, max_size=6))
        capacities[name] = sum(sizes)
        victims += [(name, each) for each in sizes]
    return capacities, draw(st.permutations(victims)), draw(st.lists(size, min_size=1, max_size=5))


def reclaimed(
    capacities: dict[str, int], victims: Sequence[Victim], sizes: Sequence[int]
) -> set[int] | None:
    """Run a session in which a gang reclaims; None if it failed."""
    nodes = [room(name, capacity) for name, capacity in capacities.items()]
    made = Bench(nodes=nodes, queues=[Queue("gang"), Queue("others")], actions=("reclaim",))
    for place, (node, size) in enumerate(victims):
        name = f"v{place:02}"
        job = made.job(name, Task(name, size=size), queue="others", preemptible=True)
        made.dispatcher.start(job.tasks[0], made.cluster.nodes[node])
        made.world.bound[name] = node
    tasks = [Task(f"t{place}", size=size) for place, size in enumerate(sizes)]
    gang = made.job("gang", *tasks, queue="gang", min_available=len(tasks))
    made.run()
    for each in nodes:
        assert each.capacity is not None
        assert each.used == sum(task.size for task in each.tasks) <= each.capacity
    assert not made.faults.seen
    gone = {int(name.removeprefix("v")) for name, _ in made.world.evicted}
    if gang.pending():
        assert not gone
        assert made.explanations.of(gang)
        return None
    return gone


@given(full_clusters(largest=1))
@example(({"a": 4, "b": 4}, [(name, 1) for name in "abababab"], [1, 1, 1]))
def test_of_equals_the_same_give_way_as_when_tried_one_by_one(
    cluster: tuple[dict[str, int], list[Victim], list[int]],
) -> None:
    assert reclaimed(*cluster) == taken_one_by_one(*cluster)


@given(full_clusters(largest=4))
def test_of_any_sizes_a_job_gets_in_when_one_by_one_it_would(
    cluster: tuple[dict[str, int], list[Victim], list[int]],
) -> None:
    gone, expected = reclaimed(*cluster), taken_one_by_one(*cluster)
    assert (gone is None) is (expected is None)
    if gone is not None:
        capacities, victims, sizes = cluster
        left = [victim for place, victim in enumerate(victims) if place not in gone]
        assert places(capacities, left, sizes)
