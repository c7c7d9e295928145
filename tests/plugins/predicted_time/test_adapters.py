"""A server that has to load a LoRA adapter is charged its loading time."""

import pytest

from epp_plugins.predicted_time import DEFAULTS, Constants, FleetModel

BOTH = ("a", "b")


def fleet(constants: Constants = DEFAULTS) -> FleetModel:
    """Return two servers that fit two adapters each; those of a page of `a` are x and y."""
    model = FleetModel(constants)
    for key in BOTH:
        model.adapters_in_use(key, 2, ())
    model.adapters_in_use("a", 2, ("x", "y"))
    return model


def loads(model: FleetModel, target_model: str) -> list[float]:
    table = model.table(BOTH, 1000.0, 0.0, target_model=target_model)
    return [each.load for each in table.predictions({}, 1000.0, {})]


@pytest.mark.parametrize(
    ("target_model", "expected"),
    [("x", [0.0, 0.15]), ("base", [0.0, 0.0]), ("", [0.0, 0.0])],
    ids=["loaded at one", "not an adapter", "unknown"],
)
def test_only_a_server_without_the_adapter_loads_it(
    target_model: str, expected: list[float]
) -> None:
    assert loads(fleet(), target_model) == expected


def test_the_time_is_part_of_the_cost_and_of_the_explanation() -> None:
    model = fleet(Constants(adapter_load_seconds=0.5))
    table = model.table(BOTH, 1000.0, 0.0, target_model="x")
    first, second = table.costs()
    assert second - first == pytest.approx(0.5)
    sentences = [each.sentence() for each in table.predictions({}, 1000.0, {})]
    assert "adapter" not in sentences[0]
    assert sentences[1].endswith(", 0.50 load of the adapter")


def test_an_idle_adapter_stays_until_others_take_its_place() -> None:
    model = fleet()
    model.adapters_in_use("a", 2, ())  # both are idle now
    assert loads(model, "y") == [0.0, 0.15]
    model.adapters_in_use("b", 2, ("z",))
    model.sent("a", 0.0, 0.0, target_model="z")  # in the place of x, used before y
    assert loads(model, "x") == [0.15, 0.15]
    assert loads(model, "y") == [0.0, 0.15]
    assert loads(model, "z") == [0.0, 0.0]


def test_a_base_model_takes_no_place() -> None:
    model = fleet()
    for _ in range(3):
        model.sent("a", 0.0, 0.0, target_model="base")
    assert loads(model, "x") == [0.0, 0.15]


def test_a_server_that_fits_no_adapter_loads_none() -> None:
    model = fleet()
    model.adapters_in_use("b", 0, ())
    assert loads(model, "x") == [0.0, 0.0]


def test_more_names_than_are_kept_push_out_the_oldest() -> None:
    model = fleet()
    model.adapters_in_use("b", 2, [f"adapter-{n}" for n in range(10_000)])
    assert loads(model, "x") == [0.0, 0.0]
    assert loads(model, "adapter-9999") == [0.15, 0.0]


def test_the_order_of_the_names_on_a_page_is_the_same_in_each_process() -> None:
    model = FleetModel()
    names = [f"adapter-{number}" for number in range(30)]
    model.adapters_in_use("a", 2, frozenset(names))  # more than fit: the last two by name are kept
    adapters = model.endpoint("a").adapters
    assert [each for each in names if not adapters.has_to_load(each)] == sorted(names)[-2:]
