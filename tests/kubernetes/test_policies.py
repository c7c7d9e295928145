"""The objectives and rewrites that apply to a pool, and the fields that are read."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest
from log_watch import Logs

from epp.data_layer import Objective, ObjectStore, PolicyMeta, Rewrite, RewriteRule
from epp.kubernetes.api import ApiClient, Resource
from epp.kubernetes.policies import PolicyKinds, PoolPolicies
from epp.kubernetes.policy_objects import (
    OBJECTIVES,
    REWRITES,
    InferenceModelRewrite,
    InferenceObjective,
)
from epp.kubernetes.source import FORMER_POOL_GROUP, PoolRef

from .fake_api import FakeApi

POOL = PoolRef("pool")
OURS = {"name": "pool"}
FORMER = {"name": "pool", "group": FORMER_POOL_GROUP}
CREATED = datetime(2026, 11, 24, tzinfo=UTC)
TO_V2 = [{"modelRewrite": "chat-v2"}]


def decode(type_: Any, spec: dict[str, Any], **metadata: Any) -> Any:
    known = {"name": "o", "namespace": "d", "creationTimestamp": "2026-11-24T00:00:00Z"}
    document = {"metadata": known | metadata, "spec": spec}
    return msgspec.json.decode(msgspec.json.encode(document), type=type_)


@pytest.mark.parametrize(
    ("pool", "ref", "counts"),
    [
        pytest.param(POOL, OURS, True, id="the group has a default"),
        pytest.param(POOL, OURS | {"kind": "Service"}, True, id="the kind does not matter"),
        pytest.param(POOL, {"name": "other"}, False, id="another pool"),
        pytest.param(POOL, FORMER, False, id="a pool of the former group"),
        pytest.param(PoolRef("pool", FORMER_POOL_GROUP), FORMER, True, id="the former group"),
        pytest.param(PoolRef("pool", FORMER_POOL_GROUP), OURS, False, id="and not the default"),
        pytest.param(POOL, None, False, id="no reference"),
    ],
)
@pytest.mark.parametrize("type_", [InferenceObjective, InferenceModelRewrite])
def test_objects_count_for_the_pool_that_they_refer_to(
    type_: Any, pool: PoolRef, ref: dict[str, str] | None, counts: bool
) -> None:
    spec = {} if ref is None else {"poolRef": ref}
    assert (decode(type_, spec).read(pool) is not None) is counts
    deleted = decode(type_, spec, deletionTimestamp="2026-11-24T00:00:00Z")
    assert deleted.read(pool) is None


@pytest.mark.parametrize(("spec", "priority"), [({"priority": -3}, -3), ({}, 0)])
def test_an_objective_has_a_priority(spec: dict[str, int], priority: int) -> None:
    meta = PolicyMeta("InferenceObjective", "o", "InferenceObjective d/o", "pool", CREATED)
    found = decode(InferenceObjective, {"poolRef": OURS} | spec)
    assert found.read(POOL) == Objective(meta, priority)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(
            [{"matches": [{"model": {"type": "Exact", "value": "chat"}}], "targets": TO_V2}],
            (RewriteRule(("chat",), ("chat-v2",)),),
            id="a model",
        ),
        pytest.param(
            [{"matches": [{"model": {"value": "a"}}, {}, {"model": {"value": "b"}}]}],
            (RewriteRule(("a", "b"), ()),),
            id="several models, and a match without one",
        ),
        pytest.param(
            [{"matches": [{}], "targets": TO_V2}], (), id="matches without a model match nothing"
        ),
        pytest.param([{"targets": TO_V2}], (RewriteRule((), ("chat-v2",)),), id="any model"),
        pytest.param(
            [{"matches": [], "targets": TO_V2}], (RewriteRule((), ("chat-v2",)),), id="empty list"
        ),
        pytest.param(
            [{"targets": [{"modelRewrite": "a", "weight": 9}, {"modelRewrite": "b", "weight": 1}]}],
            (RewriteRule((), ("a", "b"), (9, 1)),),
            id="weights",
        ),
        pytest.param(
            [{"targets": [{"modelRewrite": "a"}, {"modelRewrite": "b"}]}],
            (RewriteRule((), ("a", "b")),),
            id="no weights",
        ),
        pytest.param(
            [{"targets": [{"modelRewrite": "a"}, {"modelRewrite": "b", "weight": 1}]}],
            (RewriteRule((), ("b",), (1,)),),
            id="a target without a weight among others with one",
        ),
        pytest.param([], (), id="no rules"),
    ],
)
def test_the_rules_of_a_rewrite(
    rules: list[dict[str, Any]], expected: tuple[RewriteRule, ...]
) -> None:
    meta = PolicyMeta("InferenceModelRewrite", "o", "InferenceModelRewrite d/o", "pool", CREATED)
    found = decode(InferenceModelRewrite, {"poolRef": OURS, "rules": rules})
    assert found.read(POOL) == Rewrite(meta, expected)


@pytest.mark.parametrize("weight", [0, -1, 1_000_001])
def test_a_weight_that_no_target_can_be_drawn_by_is_refused(weight: int) -> None:
    rules = [{"targets": [{"modelRewrite": "a", "weight": weight}]}]
    with pytest.raises(msgspec.ValidationError, match="weight"):
        decode(InferenceModelRewrite, {"poolRef": OURS, "rules": rules})


class Store(ObjectStore):
    """A store that a test can wait for."""

    def __init__(self) -> None:
        super().__init__(pool_name="pool", rng=random.Random(0))
        self.reports = 0
        self._news = asyncio.Event()

    def replace(self, objects: Iterable[Objective | Rewrite]) -> Mapping[str, Mapping[str, str]]:
        in_vain = super().replace(objects)
        self.reports += 1
        self._news.set()
        return in_vain

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def following(client: ApiClient) -> AsyncIterator[Store]:
    store, kinds = Store(), PolicyKinds("d")
    task = asyncio.create_task(kinds.run(client))
    try:
        with PoolPolicies(kinds, POOL, store).followed():
            yield store
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def serve(api: FakeApi, *resources: Resource) -> None:
    for each in resources:
        api.serve(each)


async def test_objectives_and_rewrites_are_followed(api: FakeApi, client: ApiClient) -> None:
    objectives, rewrites = OBJECTIVES[0], REWRITES[0]
    serve(api, objectives, rewrites)
    api.create(objectives, "batch", spec={"poolRef": OURS, "priority": -1})
    api.create(objectives, "foreign", spec={"poolRef": {"name": "other"}, "priority": 7})
    api.create(rewrites, "canary", spec={"poolRef": OURS, "rules": [{"targets": TO_V2}]})
    async with following(client) as store:
        await store.until(lambda: store.priority_of("batch") == -1)
        await store.until(lambda: store.target_of("chat") == "chat-v2")
        assert store.priority_of("foreign") == 0
        api.update(objectives, "batch", spec={"poolRef": OURS, "priority": -2})
        await store.until(lambda: store.priority_of("batch") == -2)
        api.update(objectives, "foreign", spec={"poolRef": OURS, "priority": 7})
        await store.until(lambda: store.priority_of("foreign") == 7)
        api.delete(rewrites, "canary")
        await store.until(lambda: store.target_of("chat") is None)
        assert store.priority_of("batch") == -2


async def test_where_both_groups_have_a_kind_the_former_ones_objects_do_not_count(
    api: FakeApi, client: ApiClient
) -> None:
    new, former = OBJECTIVES
    serve(api, new, former, REWRITES[1])
    for resource, priority in ((new, 3), (former, 5)):
        api.create(resource, resource.group, spec={"poolRef": OURS, "priority": priority})
    rules = [{"targets": TO_V2}]
    api.create(REWRITES[1], "former", spec={"poolRef": OURS, "rules": rules})
    async with following(client) as store:
        await store.until(lambda: store.priority_of(new.group) == 3)
        # Each kind for itself: rewrites are in the former group alone.
        await store.until(lambda: store.target_of("chat") == "chat-v2")
        await store.until(lambda: store.priority_of(former.group) == 0)


async def test_the_oldest_rewrite_wins_then_the_first_by_name(
    api: FakeApi, client: ApiClient
) -> None:
    serve(api, REWRITES[0])
    async with following(client) as store:
        for name, created, expected in (
            ("b", "2026-11-24T00:00:00Z", "b"),
            ("a", "2026-11-24T00:00:00Z", "a"),
            ("c", "2026-11-23T00:00:00Z", "c"),
        ):
            api.state.now = created
            rules = [{"targets": [{"modelRewrite": name}]}]
            api.create(REWRITES[0], name, spec={"poolRef": OURS, "rules": rules})
            await store.until(partial(_targets, store, expected))


def _targets(store: Store, expected: str) -> bool:
    return store.target_of("chat") == expected


async def test_an_object_of_another_form_is_left_out_and_named(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    serve(api, OBJECTIVES[0])
    api.create(OBJECTIVES[0], "bad", spec={"poolRef": OURS, "priority": "high"})
    api.create(OBJECTIVES[0], "good", spec={"poolRef": OURS, "priority": 1})
    async with following(client) as store:
        await store.until(lambda: store.priority_of("good") == 1)
        await logs.until("Expected `int | null`, got `str`")
    (line,) = (each for each in logs.entries if each["event"] == "object left out")
    assert line["name"] == "d/bad"


async def test_without_the_right_to_read_objectives_the_rewrites_work(
    api: FakeApi, client: ApiClient, logs: Logs
) -> None:
    serve(api, OBJECTIVES[0], REWRITES[0])
    api.faults.denied |= {("list", "inferenceobjectives"), ("watch", "inferenceobjectives")}
    rules = [{"targets": TO_V2}]
    api.create(REWRITES[0], "canary", spec={"poolRef": OURS, "rules": rules})
    async with following(client) as store:
        await store.until(lambda: store.target_of("chat") == "chat-v2")
        await logs.until('resources: ["inferenceobjectives"], verbs: ["watch"]')


async def test_objects_that_come_together_are_reported_once(
    api: FakeApi, client: ApiClient
) -> None:
    serve(api, OBJECTIVES[0])
    async with following(client) as store:
        await api.until(lambda: api.watches == 1)
        before = store.reports
        for number in range(100):
            api.create(OBJECTIVES[0], f"o{number}", spec={"poolRef": OURS, "priority": 1})
        await store.until(lambda: store.priority_of("o99") == 1)
        assert store.reports - before < 10
