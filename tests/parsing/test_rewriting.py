"""The model name in a body is replaced, and nothing else."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing import ParseError, rewrite_model

RAW = msgspec.json.Decoder(dict[str, msgspec.Raw])

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    around=st.tuples(*[st.dictionaries(st.text(), JSON, max_size=4)] * 2),
    old=JSON,
    new=st.text(),
    indent=st.sampled_from([None, 1, "\t"]),
    is_ascii=st.booleans(),
)
def test_only_the_value_of_model_changes(
    *,
    around: tuple[dict[str, object], dict[str, object]],
    old: object,
    new: str,
    indent: int | str | None,
    is_ascii: bool,
) -> None:
    before, after = around
    fields = before | {"model": old} | after
    body = json.dumps(fields, indent=indent, ensure_ascii=is_ascii).encode()
    rewritten = rewrite_model(body, new)
    got = json.loads(rewritten)
    assert got == fields | {"model": new}
    assert list(got) == list(fields)
    raw, was = RAW.decode(rewritten), RAW.decode(body)
    assert {key: bytes(raw[key]) for key in was if key != "model"} == {
        key: bytes(value) for key, value in was.items() if key != "model"
    }


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            b'{"seed": 12345678901234567890123, "model":"a", "top_p": 1.10e-0}',
            b'{"seed":12345678901234567890123,"model":"b","top_p":1.10e-0}',
            id="numbers keep every digit",
        ),
        pytest.param(
            b'{"model":"a","prompt":"x","model":"c"}', b'{"model":"b","prompt":"x"}', id="twice"
        ),
        pytest.param(b'{"mod\\u0065l":"a"}', b'{"model":"b"}', id="spelled with an escape"),
        pytest.param(
            b'{"model":"a","prompt":"{\\"model\\": \\"a\\"}","o":{"model":"a"}}',
            b'{"model":"b","prompt":"{\\"model\\": \\"a\\"}","o":{"model":"a"}}',
            id="the same word deeper down stays",
        ),
        pytest.param(b'{"prompt":"x"}', b'{"prompt":"x","model":"b"}', id="none before"),
        pytest.param(b" {} ", b'{"model":"b"}', id="nothing before"),
    ],
)
def test_bodies_as_clients_write_them(body: bytes, want: bytes) -> None:
    assert rewrite_model(body, "b") == want


@pytest.mark.parametrize("name", ['quo"ted', "back\\slash", "日本語", "\ud800", "new\nline"])
def test_any_name_is_written_as_json(name: str) -> None:
    assert json.loads(rewrite_model(b'{"model":"a"}', name)) == {"model": name}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'"model"', b'{"model":', b'{"a":1}{', b"\xff", b"[" * 100_000],
    ids=["empty", "a list", "a string", "cut off", "two", "no text", "too deep"],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        rewrite_model(body, "b")


def test_an_object_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ParseError, match="nested too deeply"):
        rewrite_model(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "b")
