"""The conditions of objectives and rewrites, while objects, pools and rights change."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import pytest
from log_watch import Logs

from epp.data_layer import ObjectStore, PolicyMeta, Rewrite, RewriteRule
from epp.kubernetes.api import ApiClient, Resource
from epp.kubernetes.conditions import Condition
from epp.kubernetes.policies import PolicyKinds, PoolPolicies
from epp.kubernetes.policy_objects import OBJECTIVES, REWRITES
from epp.kubernetes.policy_status import accepted
from epp.kubernetes.source import PoolRef
from epp.kubernetes.status_writer import StatusWriter

from .fake_api import FakeApi
from .fake_state import Change, Json
from .followed import briefly

OURS = {"name": "pool"}
NEW, FORMER = OBJECTIVES
REWRITE = REWRITES[0]


class Cluster:
    """An API server whose objectives and rewrites are followed."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.pool_exists: bool | None = True
        self.policies: PoolPolicies | None = None
        self._news = asyncio.Event()
        api.state.listeners.append(self._note)

    def conditions(self, resource: Resource, name: str) -> dict[str, tuple[str, str]]:
        """Return the status and the reason of each condition."""
        status = self.api.state.get(resource, ("d", name)).get("status") or {}
        return {
            each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", ())
        }

    def message(self, resource: Resource, name: str) -> str:
        """Return the message of the condition Accepted."""
        conditions = self.api.state.get(resource, ("d", name))["status"]["conditions"]
        (text,) = [each["message"] for each in conditions if each["type"] == "Accepted"]
        assert isinstance(text, str)
        return text

    async def until(self, resource: Resource, name: str, **expected: tuple[str, str]) -> None:
        while self.conditions(resource, name) != expected:
            self._news.clear()
            await self._news.wait()

    async def until_true(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._news.clear()
            await self._news.wait()

    def review(self) -> None:
        assert self.policies is not None
        self.policies.review()

    def _note(self, _: Change) -> None:
        self._news.set()


@pytest.fixture
def cluster(api: FakeApi) -> Cluster:
    for each in (*OBJECTIVES, *REWRITES):
        api.state.has_status.add(each)
    return Cluster(api)


@asynccontextmanager
async def following(cluster: Cluster, client: ApiClient) -> AsyncIterator[PolicyKinds]:
    """Follow the objects; write their status 10 ms after a change."""
    kinds = PolicyKinds("d")
    kinds.writer = StatusWriter(lambda: True, sleep=briefly)
    cluster.policies = PoolPolicies(
        kinds,
        PoolRef("pool"),
        ObjectStore(pool_name="pool", rng=random.Random(0)),
        pool_exists=lambda: cluster.pool_exists,
    )
    with cluster.policies.followed():
        task = asyncio.create_task(kinds.run(client))
        try:
            yield kinds
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


IN_USE = {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("True", "ResolvedRefs")}
NO_POOL = {"Accepted": ("True", "Accepted"), "ResolvedRefs": ("False", "PoolNotFound")}


def refused(reason: str) -> dict[str, tuple[str, str]]:
    return IN_USE | {"Accepted": ("False", reason)}


def rewrite(*models: str, to: str = "v2") -> Json:
    """Return the spec of a rewrite with a rule for each model, "" for all."""
    return {
        "poolRef": OURS,
        "rules": [
            {
                "matches": [{"model": {"value": model}}] if model else [],
                "targets": [{"modelRewrite": to}],
            }
            for model in models
        ],
    }


async def test_objects_in_use_say_so_and_those_of_other_pools_nothing(
    cluster: Cluster, client: ApiClient
) -> None:
    api = cluster.api
    for resource in (NEW, REWRITE):
        api.serve(resource)
    api.create(NEW, "foreign", spec={"poolRef": {"name": "other"}})
    api.create(NEW, "batch", spec={"poolRef": OURS, "priority": -1})
    api.create(REWRITE, "canary", spec=rewrite("chat"))
    async with following(cluster, client):
        await cluster.until(NEW, "batch", **IN_USE)
        await cluster.until(REWRITE, "canary", **IN_USE)
        assert cluster.conditions(NEW, "foreign") == {}
        api.update(NEW, "foreign", spec={"poolRef": OURS})
        await cluster.until(NEW, "foreign", **IN_USE)
        (condition, _) = api.state.get(NEW, ("d", "foreign"))["status"]["conditions"]
        assert condition["observedGeneration"] == 2


async def test_without_the_pool_the_reference_is_not_resolved(
    cluster: Cluster, client: ApiClient
) -> None:
    cluster.api.serve(NEW)
    cluster.api.create(NEW, "batch", spec={"poolRef": OURS})
    cluster.pool_exists = None
    async with following(cluster, client):
        await cluster.api.until(lambda: cluster.api.watches == 1)
        cluster.review()
        await asyncio.sleep(0.1)  # ten times as long as a write takes
        assert cluster.conditions(NEW, "batch") == {}
        cluster.pool_exists = False
        cluster.review()
        await cluster.until(NEW, "batch", **NO_POOL)
        cluster.pool_exists = True
        cluster.review()
        await cluster.until(NEW, "batch", **IN_USE)


async def test_an_object_of_another_form_is_invalid_if_it_is_of_the_pool(
    cluster: Cluster, client: ApiClient
) -> None:
    api = cluster.api
    api.serve(NEW)
    api.create(NEW, "bad", spec={"poolRef": OURS, "priority": "high"})
    api.create(NEW, "foreign", spec={"poolRef": {"name": "other"}, "priority": "high"})
    api.create(NEW, "odd", spec={"poolRef": 7})
    api.create(NEW, "good", spec={"poolRef": OURS})
    async with following(cluster, client):
        await cluster.until(NEW, "bad", **refused("Invalid"))
        await cluster.until(NEW, "good", **IN_USE)
        assert "Expected `int | null`, got `str`" in cluster.message(NEW, "bad")
        assert cluster.conditions(NEW, "foreign") == cluster.conditions(NEW, "odd") == {}
        api.update(NEW, "bad", spec={"poolRef": OURS, "priority": 1})
        await cluster.until(NEW, "bad", **IN_USE)
        api.update(NEW, "good", spec={"poolRef": OURS, "priority": "low"})
        await cluster.until(NEW, "good", **refused("Invalid"))


async def test_a_status_of_any_form_hides_no_object(cluster: Cluster, client: ApiClient) -> None:
    cluster.api.serve(NEW)
    cluster.api.create(NEW, "batch", spec={"poolRef": OURS}, status={"conditions": "none"})
    async with following(cluster, client):
        await cluster.until_true(
            lambda: cluster.api.state.get(NEW, ("d", "batch"))["status"] != {"conditions": "none"}
        )
        assert cluster.conditions(NEW, "batch") == IN_USE


async def test_the_younger_one_of_two_rewrites_of_a_model_is_in_conflict(
    cluster: Cluster, client: ApiClient
) -> None:
    api = cluster.api
    api.serve(REWRITE)
    api.serve(NEW)
    api.create(NEW, "loser", spec={"poolRef": OURS})  # an objective of the same name
    for name, second in (("winner", 1), ("loser", 2), ("half", 2)):
        api.state.now = f"2026-11-24T00:00:0{second}Z"
        models = {"winner": ["chat", ""], "loser": ["chat", ""], "half": ["code", "chat"]}
        api.create(REWRITE, name, spec=rewrite(*models[name]))
    half = IN_USE | {"Accepted": ("True", "PartiallyConflicted")}
    async with following(cluster, client):
        await cluster.until(REWRITE, "winner", **IN_USE)
        await cluster.until(REWRITE, "loser", **refused("Conflicted"))
        await cluster.until(REWRITE, "half", **half)
        text = "rewrites before it decide about all models by winner, chat by winner"
        await cluster.until(NEW, "loser", **IN_USE)
        assert cluster.message(REWRITE, "loser") == f"no rule is in use; {text}"
        api.delete(REWRITE, "winner")
        # Of the same second: the first by name.
        await cluster.until(REWRITE, "half", **IN_USE)
        await cluster.until(REWRITE, "loser", **half)


async def test_objects_of_a_group_that_is_not_used_say_where_they_belong(
    cluster: Cluster, client: ApiClient
) -> None:
    api = cluster.api
    api.serve(FORMER)
    api.create(FORMER, "batch", spec={"poolRef": OURS})
    async with following(cluster, client):
        await cluster.until(FORMER, "batch", **IN_USE)
    api.serve(NEW)
    async with following(cluster, client):
        await cluster.until(FORMER, "batch", **refused("OtherGroupInUse"))
        assert "llm-d.ai/v1alpha2" in cluster.message(FORMER, "batch")


async def test_each_of_several_pools_judges_its_own_objects(
    cluster: Cluster, client: ApiClient
) -> None:
    api = cluster.api
    api.serve(NEW)
    api.create(NEW, "ours", spec={"poolRef": OURS})
    api.create(NEW, "theirs", spec={"poolRef": {"name": "other"}})
    async with following(cluster, client) as kinds:
        store = ObjectStore(pool_name="other", rng=random.Random(0))
        other = PoolPolicies(kinds, PoolRef("other"), store, pool_exists=lambda: False)
        await cluster.until(NEW, "ours", **IN_USE)
        with other.followed():
            await cluster.until(NEW, "theirs", **NO_POOL)
            assert cluster.conditions(NEW, "ours") == IN_USE
        # Nobody judges them any more.
        api.update(NEW, "theirs", spec={"poolRef": {"name": "other"}, "priority": 1})
        api.update(NEW, "ours", spec={"poolRef": OURS, "priority": 1})
        await cluster.until_true(partial(observes, api, "ours", 2))
        assert observes(api, "theirs", 1)


def observes(api: FakeApi, name: str, generation: int) -> bool:
    conditions = api.state.get(NEW, ("d", name))["status"]["conditions"]
    return {each["observedGeneration"] for each in conditions} == {generation}


async def test_without_the_right_the_objects_are_used_all_the_same(
    cluster: Cluster, client: ApiClient, logs: Logs
) -> None:
    api = cluster.api
    api.serve(NEW)
    api.faults.denied.add(("patch", "inferenceobjectives/status"))
    api.create(NEW, "a", spec={"poolRef": OURS})
    api.create(NEW, "b", spec={"poolRef": OURS})
    async with following(cluster, client):
        await logs.until('resources: ["inferenceobjectives/status"], verbs: ["patch"]')
        patches = [each for each in api.requests if each.method == "PATCH"]
        assert len(patches) == 1
    assert cluster.conditions(NEW, "a") == {}


def test_a_long_conflict_names_some_models() -> None:
    models = tuple(f"m{number}" for number in range(9))
    meta = PolicyMeta("InferenceModelRewrite", "o", "", "pool", datetime.now(UTC))
    losing = Rewrite(meta, (RewriteRule(models, ("x",)),))
    found = accepted(losing, dict.fromkeys(models, "w"))
    named = ", ".join(f"m{number} by w" for number in range(5))
    text = f"no rule is in use; rewrites before it decide about {named}, and 4 more"
    assert found == Condition("Accepted", False, "Conflicted", text)
