"""The store of objectives and rewrites: precedence, shares, and ignored objects."""

import random
from collections import Counter
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from epp.data_layer import ObjectStore
from epp.data_layer.objects import Objective, PolicyMeta, Rewrite, RewriteRule


def make_store() -> ObjectStore:
    return ObjectStore(pool_name="pool", rng=random.Random(7))


def make_objective(
    name: str, priority: int = 0, *, pool: str = "", origin: str = "f:1"
) -> Objective:
    return Objective(PolicyMeta("InferenceObjective", name, origin, pool), priority)


def make_rewrite(
    name: str, *rules: RewriteRule, created: str | None = None, pool: str = ""
) -> Rewrite:
    created_at = datetime.fromisoformat(created).replace(tzinfo=UTC) if created else None
    meta = PolicyMeta("InferenceModelRewrite", name, f"{name}:1", pool, created_at)
    return Rewrite(meta, rules)


def rule(target: str, *models: str) -> RewriteRule:
    return RewriteRule(models, (target,))


def test_priorities_are_found_by_name_and_are_zero_without_an_objective() -> None:
    store = make_store()
    assert store.priority_of("batch") == 0
    store.replace([make_objective("batch", -5), make_objective("chat", 3, pool="pool")])
    assert [store.priority_of(name) for name in ("batch", "chat", "other", "")] == [-5, 3, 0, 0]
    store.replace([])
    assert store.priority_of("batch") == 0


@pytest.mark.parametrize(
    ("rewrites", "expected"),
    [
        pytest.param([], None, id="none"),
        pytest.param([make_rewrite("a", rule("y", "other"))], None, id="another model"),
        pytest.param([make_rewrite("a", rule("y", "other", "x"))], "y", id="one of several models"),
        pytest.param([make_rewrite("a", rule("y"))], "y", id="a rule for all models"),
        pytest.param(
            [make_rewrite("a", rule("all"), rule("exact", "x"))], "exact", id="exact over generic"
        ),
        pytest.param(
            [
                make_rewrite("a", rule("all"), created="2020-01-01"),
                make_rewrite("b", rule("y", "x")),
            ],
            "y",
            id="exact over generic of an older object",
        ),
        pytest.param(
            [
                make_rewrite("a", rule("newer", "x"), created="2024-01-01"),
                make_rewrite("b", rule("older", "x"), created="2023-01-01"),
            ],
            "older",
            id="the oldest object",
        ),
        pytest.param(
            [
                make_rewrite("a", rule("undated", "x")),
                make_rewrite("b", rule("dated", "x"), created="2023-01-01"),
            ],
            "dated",
            id="an object without a time is the newest",
        ),
        pytest.param(
            [make_rewrite("a", rule("first")), make_rewrite("b", rule("second"))],
            "first",
            id="the order of files",
        ),
        pytest.param(
            [make_rewrite("a", rule("first", "x"), rule("second", "x"))],
            "first",
            id="the order of rules",
        ),
    ],
)
def test_the_precedence_of_rewrite_rules(rewrites: list[Rewrite], expected: str | None) -> None:
    store = make_store()
    store.replace(rewrites)
    assert store.target_of("x") == expected


def test_models_that_an_older_rewrite_decides_about_are_returned() -> None:
    rewrites = [
        make_rewrite("young", rule("y", "a", "b"), rule("y"), created="2024-01-01"),
        make_rewrite("old", rule("o", "a"), rule("o"), rule("o", "a"), created="2023-01-01"),
    ]
    assert make_store().replace(rewrites) == {"young": {"a": "old", "": "old"}}
    assert make_store().replace(rewrites[:1]) == {}


def test_only_a_rule_without_models_is_for_all_of_them() -> None:
    store = make_store()
    assert not store.renames_all()
    store.replace([make_rewrite("a", rule("first", "x"))])
    assert not store.renames_all()
    store.replace([make_rewrite("a", rule("first", "x"), rule("second"))])
    assert store.renames_all()


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        pytest.param((), {"a": 0.5, "b": 0.5}, id="equal without weights"),
        pytest.param((9, 1), {"a": 0.9, "b": 0.1}, id="by weight"),
    ],
)
def test_targets_are_drawn_by_their_shares(
    weights: tuple[int, ...], shares: dict[str, float]
) -> None:
    store = make_store()
    store.replace([make_rewrite("r", RewriteRule(("x",), ("a", "b"), weights))])
    drawn = Counter(store.target_of("x") for _ in range(10_000))
    assert {name: count / 10_000 for name, count in drawn.items()} == pytest.approx(
        shares, abs=0.02
    )


def test_each_decision_is_reported_with_its_rewrite() -> None:
    rewrites: list[tuple[str, str, str]] = []
    store = ObjectStore(
        pool_name="pool",
        rng=random.Random(0),
        rewritten=lambda *decision: rewrites.append(decision),
    )
    store.replace(
        [
            make_rewrite("one", RewriteRule(("x",), ("a",))),
            make_rewrite("all", RewriteRule((), ("b",))),
        ]
    )
    assert [store.target_of(model) for model in ("x", "y")] == ["a", "b"]
    assert rewrites == [("one", "x", "a"), ("all", "y", "b")]


def test_a_rule_without_targets_renames_nothing_and_hides_those_behind_it() -> None:
    rewrites: list[tuple[str, str, str]] = []
    store = ObjectStore(
        pool_name="pool",
        rng=random.Random(7),
        rewritten=lambda *decision: rewrites.append(decision),
    )
    empty = RewriteRule(("x",), ())
    store.replace([make_rewrite("a", empty, rule("late", "x"), RewriteRule((), ()))])
    assert [store.target_of(model) for model in ("x", "y")] == [None, None]
    assert rewrites == []
    assert not store.renames_all()
    assert store.names().targets == set()


def test_draws_repeat_with_the_seed() -> None:
    def draws() -> list[str | None]:
        store = make_store()
        store.replace([make_rewrite("r", RewriteRule((), ("a", "b", "c")))])
        return [store.target_of("x") for _ in range(50)]

    assert draws() == draws()
    assert set(draws()) == {"a", "b", "c"}


def test_objects_of_another_pool_and_second_ones_are_left_out_and_reported_once() -> None:
    store = make_store()
    objects: list[Objective | Rewrite] = [
        make_objective("batch", 1, origin="a.yaml:1"),
        make_objective("batch", 2, origin="b.yaml:7"),
        make_objective("chat", 3, pool="elsewhere", origin="b.yaml:9"),
        make_rewrite("batch", rule("y", "x"), pool="elsewhere"),
    ]
    with capture_logs() as logs:
        store.replace(objects)
        store.replace(objects)
    assert (store.priority_of("batch"), store.priority_of("chat")) == (1, 0)
    assert store.target_of("x") is None
    elsewhere = (
        "is left out: spec.poolRef.name is 'elsewhere', but this endpoint picker's pool is 'pool'"
        " (--pool-name)"
    )
    twice = "is left out: a.yaml:1 has one of the same name: rename or remove one"
    assert [log["reason"] for log in logs] == [
        f"b.yaml:7: InferenceObjective 'batch' {twice}",
        f"b.yaml:9: InferenceObjective 'chat' {elsewhere}",
        f"batch:1: InferenceModelRewrite 'batch' {elsewhere}",
    ]


def test_what_is_mended_and_left_out_again_is_reported_again() -> None:
    store = make_store()
    wrong = make_objective("chat", 3, pool="elsewhere", origin="b.yaml:9")
    with capture_logs() as logs:
        for objects in ([wrong], [], [wrong]):
            store.replace(objects)
    assert len(logs) == 2
