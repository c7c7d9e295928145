"""Names, order and arguments of plugins and actions."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest

from epp.flow_control.sessions import (
    REGISTERED,
    ArgumentError,
    Arguments,
    PluginError,
    PluginSetting,
    Registry,
    Seconds,
    SessionPlugin,
    UnknownNameError,
    build_actions,
    register_plugin_builder,
)


class Noted(SessionPlugin):
    """Has one argument."""

    def __init__(self, arguments: Arguments) -> None:
        self.name = arguments.plugin
        self.weight = arguments.get_float("weight", 1.0)


class Other(Noted):
    """Another builder."""


def registry(*names: str) -> Registry:
    return Registry(dict.fromkeys(names, Noted))


def test_plugins_are_built_by_priority_then_name_and_disabled_ones_left_out() -> None:
    settings = {
        "c": PluginSetting(),
        "a": PluginSetting(),
        "last": PluginSetting(priority=-1),
        "first": PluginSetting(priority=7, arguments={"weight": 2}),
        "off": PluginSetting(enabled=False),
    }
    built = registry(*settings).build(settings)
    assert [plugin.name for plugin in built] == ["first", "a", "c", "last"]
    assert isinstance(built[0], Noted)
    assert built[0].weight == 2.0


@pytest.mark.parametrize(
    ("build", "text"),
    [
        pytest.param(
            lambda: registry("priority").build({"priorty": PluginSetting()}),
            "there is no session plugin 'priorty'; did you mean 'priority'?",
            id="a misspelt plugin",
        ),
        pytest.param(
            lambda: registry("a", "b").build({"zzz": PluginSetting(enabled=False)}),
            "there is no session plugin 'zzz'; known: a, b",
            id="an unknown plugin, disabled too",
        ),
        pytest.param(
            lambda: build_actions(["alocate"]),
            "there is no action 'alocate'; did you mean 'allocate'?",
            id="a misspelt action",
        ),
    ],
)
def test_unknown_names_are_refused(build: Callable[[], object], text: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        build()
    assert str(caught.value) == text


def test_an_action_is_listed_once() -> None:
    assert [action.name for action in build_actions(["preempt", "allocate"])] == [
        "preempt",
        "allocate",
    ]
    with pytest.raises(ValueError, match="action 'allocate' is listed twice"):
        build_actions(["allocate", "reclaim", "allocate"])


def test_a_name_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REGISTERED, "_builders", {})
    register_plugin_builder("mine", Noted)
    register_plugin_builder("mine", Noted)  # a module that is imported twice
    with pytest.raises(ValueError, match="there is a session plugin 'mine' already"):
        register_plugin_builder("mine", Other)
    assert REGISTERED.names == ["mine"]
    assert REGISTERED.build({"mine": PluginSetting()})[0].name == "mine"


GETTERS: dict[str, Callable[[Arguments], Any]] = {
    "text": lambda given: given.get_str("it", "default"),
    "whole": lambda given: given.get_int("it", 3),
    "number": lambda given: given.get_float("it", 1.5),
    "truth": lambda given: given.get_bool("it", default=True),
    "seconds": lambda given: given.get_seconds("it", 9.0),
}


@pytest.mark.parametrize(
    ("getter", "given", "want"),
    [
        ("text", "x", "x"),
        ("text", 7, "7"),
        ("text", None, "default"),
        ("whole", 4, 4),
        ("whole", "-4", -4),
        ("whole", None, 3),
        ("number", 2, 2.0),
        ("number", "0.25", 0.25),
        ("number", None, 1.5),
        ("truth", False, False),
        ("truth", "False", False),
        ("truth", "true", True),
        ("truth", None, True),
        ("seconds", 2, 2.0),
        ("seconds", "300ms", 0.3),
        ("seconds", "2s", 2.0),
        ("seconds", "5m", 300.0),
        ("seconds", "1h", 3600.0),
        ("seconds", None, 9.0),
    ],
)
def test_arguments_are_read_as_what_they_say(getter: str, given: object, want: object) -> None:
    got = GETTERS[getter](Arguments({"it": given}))
    assert (got, type(got)) == (
        pytest.approx(want) if isinstance(want, float) else want,
        type(want),
    )


@pytest.mark.parametrize(
    ("getter", "given", "kind"),
    [
        ("text", ["x"], "a text"),
        ("text", True, "a text"),
        ("whole", 1.5, "a whole number"),
        ("whole", True, "a whole number"),
        ("whole", "x", "a whole number"),
        ("number", "nan", "a finite number"),
        ("number", float("inf"), "a finite number"),
        ("number", {}, "a finite number"),
        ("truth", 1, "true or false"),
        ("truth", "yes", "true or false"),
        ("seconds", "5 parsecs", "a duration of 0 or more, such as 300ms or 2s"),
        ("number", 10**400, "a finite number"),
        ("seconds", "1e308h", "a duration of 0 or more, such as 300ms or 2s"),
        ("seconds", -1, "a duration of 0 or more, such as 300ms or 2s"),
    ],
)
def test_an_argument_of_another_kind_is_refused(getter: str, given: object, kind: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        GETTERS[getter](Arguments({"it": given}, plugin="mine"))
    assert str(caught.value) == (
        f"session plugin 'mine': argument 'it' is {given!r}; it must be {kind}"
    )


def test_an_argument_that_its_plugin_does_not_know_is_refused() -> None:
    with pytest.raises(ArgumentError) as caught:
        registry("mine").build({"mine": PluginSetting(arguments={"weihgt": 2})})
    assert str(caught.value) == (
        "session plugin 'mine': unknown argument 'weihgt'; it takes: weight"
    )


def test_arguments_are_a_mapping() -> None:
    given = Arguments({"a": 1, "b": [2]})
    assert dict(given) == {"a": 1, "b": [2]}
    assert (len(given), given["b"], given.get("c")) == (2, [2], None)


class Params(msgspec.Struct, frozen=True, rename="camel"):
    """One field of each kind."""

    must_be: str
    count: int = 3
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    is_on: bool = True
    wait: Seconds = 9.0
    weights: dict[str, float] = {}
    mode: Literal["pack", "spread"] = "pack"


class Typed(SessionPlugin):
    """Takes a Struct."""

    name = "typed"

    def __init__(self, params: Params) -> None:
        self.params = params


def typed(**arguments: object) -> Params:
    (plugin,) = Registry({"typed": Typed}).build({"typed": PluginSetting(arguments=arguments)})
    assert isinstance(plugin, Typed)
    return plugin.params


def test_a_plugin_gets_its_arguments_as_a_struct() -> None:
    assert typed(mustBe="x") == Params(must_be="x")
    strings = {"count": "4", "share": "0.25", "isOn": "false", "wait": "300ms", "mode": "spread"}
    assert typed(mustBe=7, weights={"a": "2"}, **strings) == Params(
        must_be="7",
        count=4,
        share=0.25,
        is_on=False,
        wait=0.3,
        weights={"a": 2.0},
        mode="spread",
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "argument 'mustBe' is missing"),
        ({"mustBe": None}, "argument 'mustBe' is missing"),
        ({"count": 1.5}, "argument 'count' is 1.5; it must be a whole number"),
        ({"share": "2"}, "argument 'share' is '2'; it must be a finite number <= 1.0"),
        ({"wait": -1}, "argument 'wait' is -1; it must be a duration of 0 or more, such as 300ms"),
        ({"weights": 1}, "argument 'weights' is 1; it must be a mapping"),
        ({"weights": {"a": "x"}}, "argument 'weights': 'a' is 'x'; it must be a finite number"),
        ({"mode": "x"}, "argument 'mode' is 'x'; invalid enum value 'x'"),
        (
            {"isOff": True},
            "unknown argument 'isOff'; it takes: mustBe, count, share, isOn, wait, weights, mode",
        ),
    ],
)
def test_an_argument_that_does_not_fit_the_struct_is_refused(
    arguments: dict[str, object], text: str
) -> None:
    given = arguments if "missing" in text else {"mustBe": "x", **arguments}
    with pytest.raises(ArgumentError) as caught:
        typed(**given)
    assert str(caught.value).startswith(f"session plugin 'typed': {text}")


class Plain(SessionPlugin):
    """Takes nothing."""

    name = "plain"


def test_a_plugin_without_a_constructor_takes_no_arguments() -> None:
    registry = Registry({"plain": Plain})
    assert isinstance(registry.build({"plain": PluginSetting()})[0], Plain)
    with pytest.raises(ArgumentError, match="unknown argument 'a'; it takes: none"):
        registry.build({"plain": PluginSetting(arguments={"a": 1})})


def failing(_: Arguments) -> SessionPlugin:
    raise KeyError("weight")


class Nameless(SessionPlugin):
    """Has no name."""

    def __init__(self, arguments: Arguments) -> None:
        """Take no arguments."""


@pytest.mark.parametrize(
    ("builder", "text"),
    [
        pytest.param(failing, "cannot be built: KeyError: 'weight'", id="a builder that fails"),
        pytest.param(
            SessionPlugin, "SessionPlugin has no `name`; give it one", id="the base class"
        ),
        pytest.param(
            lambda _: object(), "its builder returned object, which is no SessionPlugin", id="none"
        ),
        pytest.param(Nameless, "Nameless has no `name`; give it one", id="without a name"),
    ],
)
def test_what_cannot_be_built_is_named_and_says_why(builder: Any, text: str) -> None:
    with pytest.raises(PluginError) as caught:
        Registry({"mine": builder}).build({"mine": PluginSetting()})
    assert str(caught.value).startswith(f"session plugin 'mine'{'' if text[0] == 'c' else ':'} ")
    assert text in str(caught.value)
