"""Values to Structs: every fault is named, null counts as absent, references are collected."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import pytest

from epp.config.fault_texts import Fault, suggestion
from epp.config.structs import Leniency, Reference, read


def check_even(number: str | float) -> None:
    if isinstance(number, str) or number % 2:
        raise ValueError(f"`{number}` is odd")


Name = Annotated[str, msgspec.Meta(min_length=1, extra={"refers_to": "plugin"})]
Even = Annotated[int, msgspec.Meta(ge=0, extra={"check": check_even})]


class Inner(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    the_name: Name
    even: Even | None = None


class Tagged(msgspec.Struct, tag_field="kind", tag="tagged"):
    x: int = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    by_name: dict[Name, Literal["open", "closed"]] = {}
    some: Annotated[list[int], msgspec.Meta(max_length=2)] = []
    pair: tuple[int, str] | None = None
    loose: dict[str, Any] | None = None
    number: float | int | None = None
    tagged: Tagged | None = None
    fixed: Literal[1, 2] = 1


class Open(msgspec.Struct):
    known: int = 0

    def __post_init__(self) -> None:
        if self.known > 9:
            raise ValueError("known is above 9")


def faults(value: object, wanted: type[Any] = Outer, path: str = "") -> list[tuple[str, str]]:
    reading = read(value, wanted, path)
    assert (reading.value is None) == bool(reading.faults)
    return [(fault.path, fault.message) for fault in reading.faults]


def test_sound_value_is_converted_and_its_references_are_gathered() -> None:
    value = {
        "inner": {"theName": "a", "even": 4},
        "many": [{"theName": "b"}],
        "byName": {"c": "open"},
        "pair": [1, "x"],
        "tagged": {"kind": "tagged", "x": 3},
    }
    reading = read(value, Outer, "here")
    assert reading.value == Outer(
        inner=Inner("a", 4),
        many=(Inner("b"),),
        by_name={"c": "open"},
        pair=(1, "x"),
        tagged=Tagged(3),
    )
    assert reading.faults == ()
    assert reading.references == (
        Reference("plugin", "here.inner.theName", "a"),
        Reference("plugin", "here.many[0].theName", "b"),
        Reference("plugin", "here.byName.c", "c", on_key=True),
    )


def test_whole_numbers_may_be_written_as_helm_writes_large_ones() -> None:
    value = {
        "inner": {"theName": "a", "even": 1e6},
        "some": [2.0, -3e0],
        "number": 4.0,
        "loose": {"x": 5.0},
    }
    found = read(value, Outer).value
    assert found is not None
    assert found.inner == Inner("a", 1_000_000)
    assert found.some == [2, -3]
    assert all(type(each) is int for each in found.some)
    assert type(found.number) is float
    assert type((found.loose or {})["x"]) is float


def test_null_counts_as_absent_except_below_values_of_any_kind() -> None:
    value = {"inner": None, "many": None, "byName": None, "loose": {"x": None}, "fixed": None}
    assert read(value, Outer).value == Outer(loose={"x": None})


FAULTS: dict[str, tuple[object, list[tuple[str, str]]]] = {
    "a fraction for a whole number": (
        {"some": [1.5, 1e300]},
        [
            ("some[0]", "expected a whole number, got a number"),
            ("some[1]", "expected a whole number, got a number"),
        ],
    ),
    "not a number": ({"number": float("nan")}, [("number", "must be a number, not .nan")]),
    "no mapping": ([], [("", "expected a mapping, got a list")]),
    "nothing": (None, [("", "expected a mapping, got nothing")]),
    "unknown field with a near one": (
        {"inne": 1},
        [("inne", "unknown field `inne`; did you mean `inner`?")],
    ),
    "unknown field in other letters": (
        {"BYNAME": 1},
        [("BYNAME", "unknown field `BYNAME`; did you mean `byName`?")],
    ),
    "unknown field like no other": (
        {"inner": {"theName": "a", "zzz": 1}},
        [("inner.zzz", "unknown field `zzz`; known: `even`, `theName`")],
    ),
    "missing and null required fields": (
        {"many": [{}, {"theName": None}]},
        [
            ("many[0]", "required field `theName` is missing"),
            ("many[1]", "required field `theName` is missing"),
        ],
    ),
    "label that looks like something else": (
        {"inner": {"theName": True}},
        [("inner.theName", "expected a text, got true or false; put it in quotes")],
    ),
    "empty name": (
        {"inner": {"theName": ""}},
        [("inner.theName", "expected a text of length >= 1")],
    ),
    "every fault of one object": (
        {"inner": {"theName": 3, "even": "x", "more": 1}},
        [
            ("inner.theName", "expected a text, got a whole number; put it in quotes"),
            ("inner.even", "`x` is odd"),
            ("inner.more", "unknown field `more`; known: `even`, `theName`"),
        ],
    ),
    "check that fails": ({"inner": {"theName": "a", "even": 3}}, [("inner.even", "`3` is odd")]),
    "out of range": (
        {"inner": {"theName": "a", "even": -2}},
        [("inner.even", "expected a whole number >= 0")],
    ),
    "check of a list": (
        {"inner": {"theName": "a", "even": [2]}},
        [("inner.even", "expected a whole number, got a list")],
    ),
    "wrong kinds of containers": (
        {"inner": "x", "many": True, "byName": [], "some": {}, "loose": 1.5},
        [
            ("inner", "expected a mapping, got a text"),
            ("many", "expected a list, got `true`"),
            ("byName", "expected a mapping, got a list"),
            ("some", "expected a list, got a mapping"),
            ("loose", "expected a mapping, got `1.5`"),
        ],
    ),
    "word that is not among the few": (
        {"byName": {"a.b": "opened"}},
        [('byName["a.b"]', "must be `open` or `closed`, not `opened`")],
    ),
    "number that is not among the few": ({"fixed": 3}, [("fixed", "must be `1` or `2`, not `3`")]),
    "empty key": ({"byName": {"": "open"}}, [('byName[""]', "expected a text of length >= 1")]),
    "members of a list": (
        {"some": [1, "x", None]},
        [
            ("some[1]", "expected a whole number, got a text"),
            ("some[2]", "expected a whole number, got nothing"),
        ],
    ),
    "list too long": ({"some": [1, 2, 3]}, [("some", "expected a list of length <= 2")]),
    "tuple of several types": (
        {"pair": ["x", "y"]},
        [("pair[0]", "expected a whole number, got a text")],
    ),
    "tag": ({"tagged": {"kind": "other"}}, [("tagged.kind", "invalid value 'other'")]),
}


@pytest.mark.parametrize(("value", "said"), FAULTS.values(), ids=FAULTS)
def test_every_fault_is_reported_with_its_path(value: object, said: list[tuple[str, str]]) -> None:
    assert faults(value) == said


def test_paths_begin_where_the_value_stands() -> None:
    assert faults({"inner": 3, "nope": 1}, path="a[1]") == [
        ("a[1].inner", "expected a mapping, got `3`"),
        (
            "a[1].nope",
            (
                "unknown field `nope`; known: `byName`, `fixed`, `inner`, `loose`, `many`,"
                " `number`, `pair`, `some`, `tagged`"
            ),
        ),
    ]


def test_unknown_field_is_a_fault_of_its_key() -> None:
    (fault,) = read({"knwon": 1}, Inner).faults[:1]
    assert fault == Fault("knwon", "unknown field `knwon`; known: `even`, `theName`", on_key=True)


def test_names_in_another_case_are_known_if_accepted_each_with_a_warning() -> None:
    value = {"INNER": {"thename": "a", "Even": 2}, "bytype": {}, "some": []}
    reading = read(value, Outer, "p", Leniency(any_case=True))
    assert faults({"INNER": {"theName": "a"}})[0][0] == "INNER"
    assert reading.value is None
    assert [fault.path for fault in reading.faults] == ["p.bytype"]
    assert reading.warnings == (
        Fault("p.INNER", "field `INNER` is read as `inner`; write it so", on_key=True),
        Fault("p.INNER.thename", "field `thename` is read as `theName`; write it so", on_key=True),
        Fault("p.INNER.Even", "field `Even` is read as `even`; write it so", on_key=True),
    )
    del value["bytype"]
    assert read(value, Outer, "p", Leniency(any_case=True)).value == Outer(inner=Inner("a", 2))


def test_one_field_in_two_cases_is_a_fault() -> None:
    reading = read({"Number": None, "number": 2}, Outer, "", Leniency(any_case=True))
    text = "field `number` is there twice, also as `Number`"
    assert reading.faults == (Fault("number", text, on_key=True),)


def test_unknown_fields_have_no_effect_if_accepted_each_with_a_warning() -> None:
    reading = read({"knwon": {"x": 1}, "theName": "a"}, Inner, "", Leniency(unknown_fields=True))
    text = "field `knwon` is unknown and has no effect"
    assert reading.value == Inner("a")
    assert reading.warnings == (Fault("knwon", text, on_key=True),)


class WithDefault(msgspec.Struct, forbid_unknown_fields=True):
    level: Annotated[Literal["host", "zone"], msgspec.Meta(extra={"empty_is_absent": True})] = (
        "host"
    )
    other: Literal["host", "zone"] = "host"


def test_empty_text_means_the_default_where_the_field_says_so() -> None:
    assert read({"level": ""}, WithDefault).value == WithDefault("host")
    assert faults({"other": ""}, WithDefault) == [("other", "must be `host` or `zone`, not ``")]


def test_struct_that_allows_unknown_fields_ignores_them() -> None:
    assert read({"known": 2, "more": 3}, Open).value == Open(2)


def test_what_post_init_refuses_is_reported() -> None:
    assert faults({"known": 10}, Open, "p") == [("p", "known is above 9")]


def from_nowhere() -> int:
    raise ValueError("$LIMIT is `x`; set it to a number")


class FromEnvironment(msgspec.Struct):
    limit: int = msgspec.field(default_factory=from_nowhere)


def test_default_that_cannot_be_made_is_reported() -> None:
    assert faults({}, FromEnvironment, "p") == [("p", "$LIMIT is `x`; set it to a number")]
    assert read({"limit": 3}, FromEnvironment).value == FromEnvironment(3)


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("queue-scorrer", {"queue-scorer", "x"}, "did you mean `queue-scorer`?"),
        ("QUEUE", ["queue"], "did you mean `queue`?"),
        ("zzz", {"b": 1, "a": 2}, "known: `a`, `b`"),
        ("zzz", (), "known: none"),
        (
            "zzz",
            tuple(f"n{n:02}" for n in range(23)),
            f"known: {', '.join(f'`n{n:02}`' for n in range(20))} and 3 more",
        ),
    ],
)
def test_suggestion_is_the_nearest_or_what_there_is(
    name: str, known: tuple[str, ...] | Mapping[str, int], said: str
) -> None:
    assert suggestion(name, known) == said
