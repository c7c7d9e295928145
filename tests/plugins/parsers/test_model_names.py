"""The model name in a body is replaced, and nothing else."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.parsing.plugins import ParseError
from epp_plugins.parsers.model_names import with_model

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
    rewritten = with_model(body, new)
    got = json.loads(rewritten)
    assert got == fields | {"model": new}
    assert list(got) == list(fields)
    raw, was = RAW.decode(rewritten), RAW.decode(body)
    assert {key: bytes(raw[key]) for key in was if key != "model"} == {
        key: bytes(value) for key, value in was.items() if key != "model"
    }
    # Not a byte outside the value: putting the old value back gives the old body.
    value, name = bytes(was["model"]), json.dumps(new).encode()
    starts = [at for at in range(len(body)) if body.startswith(value, at)]
    assert rewritten in {body[:at] + name + body[at + len(value) :] for at in starts}


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            b'{"seed": 12345678901234567890123, "model":"a", "top_p": 1.10e-0}',
            b'{"seed": 12345678901234567890123, "model":"b", "top_p": 1.10e-0}',
            id="numbers keep every digit",
        ),
        pytest.param(
            b'{"model":"a","prompt":"x","model":"c"}',
            b'{"model":"b","prompt":"x"}',
            id="twice",
        ),
        pytest.param(
            b'{"mod\\u0065l" : "a" }', b'{"mod\\u0065l" : "b" }', id="spelled with an escape"
        ),
        pytest.param(
            b'{"model":"a","mod\\u0065l":["c", {"model": 1}] ,"x":[1,2]}',
            b'{"model":"b","x":[1,2]}',
            id="twice, once with an escape",
        ),
        pytest.param(
            b'{"a":"xx","model":"evil","a":"{\\"model\\":\\"x\\"","b":1}',
            b'{"a":"{\\"model\\":\\"x\\"","model":"b","b":1}',
            id="another key twice, as long as what lies between",
        ),
        pytest.param(b'{"n":1,"model":"a","n":12}', b'{"n":12,"model":"b"}', id="1 and 12"),
        pytest.param(b'{"model":null}', b'{"model":"b"}', id="null"),
        pytest.param(
            b'{"x":"\xff","model":"a"}', b'{"x":"\xff","model":"b"}', id="bytes that are no UTF-8"
        ),
        pytest.param(
            b'{"model":"a","prompt":"{\\"model\\": \\"a\\"}","o":{"model":"a"}}',
            b'{"model":"b","prompt":"{\\"model\\": \\"a\\"}","o":{"model":"a"}}',
            id="the same word deeper down stays",
        ),
        pytest.param(b'{"prompt":"x"}', b'{"model":"b","prompt":"x"}', id="none before"),
        pytest.param(b" {} ", b' {"model":"b"} ', id="nothing before"),
    ],
)
def test_bodies_as_clients_write_them(body: bytes, want: bytes) -> None:
    assert with_model(body, "b") == want


@pytest.mark.parametrize("name", ['quo"ted', "back\\slash", "日本語", "\ud800", "new\nline"])
def test_any_name_is_written_as_json(name: str) -> None:
    assert json.loads(with_model(b'{"model":"a"}', name)) == {"model": name}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'"model"', b'{"model":', b'{"a":1}{', b"\xff", b"[" * 100_000],
    ids=["empty", "a list", "a string", "cut off", "two", "no text", "too deep"],
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        with_model(body, "b")


def test_an_object_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ParseError, match="nested too deeply"):
        with_model(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "b")


_PAIR = st.tuples(
    st.sampled_from(["model", "a", "b"]),
    st.sampled_from(
        ["1", "12", '"x"', '"}"', '"\\\\"', "{}", '{"model":"in"}', '["a",[]]', "null"]
    ),
)


@given(
    pairs=st.lists(_PAIR, min_size=1, max_size=7),
    is_escaped=st.booleans(),
    blank=st.sampled_from(["", " ", "\n\t"]),
)
def test_no_model_but_the_new_one_is_left_however_often_a_key_is_given(
    pairs: list[tuple[str, str]], is_escaped: bool, blank: str
) -> None:
    fields = [
        f'{blank}"{"mod" + chr(92) + "u0065l" if is_escaped and key == "model" else key}"'
        f"{blank}:{blank}{value}{blank}"
        for key, value in pairs
    ]
    body = f"{{{','.join(fields)}}}".encode()
    rewritten = with_model(body, "new")
    got = json.loads(rewritten, object_pairs_hook=list)
    assert [key for key, _ in got].count("model") == 1
    assert json.loads(rewritten) == json.loads(body) | {"model": "new"}
    keys = [key for key, _ in pairs]
    if len({*keys}) == len(keys) and "model" in keys:
        value = dict(pairs)["model"].encode()
        before, _, after = body.partition(value) if body.count(value) == 1 else (b"", b"", b"")
        assert not after or rewritten == before + b'"new"' + after


def test_a_body_with_a_thousand_fields_is_the_longest() -> None:
    fields = {f"x{number}": number for number in range(999)}
    body = json.dumps(fields | {"model": "a"}).encode()
    assert json.loads(with_model(body, "b")) == fields | {"model": "b"}
    with pytest.raises(ParseError, match="more than 1000 fields"):
        with_model(json.dumps(fields | {"model": "a", "y": 1}).encode(), "b")


@pytest.mark.parametrize("key", [b'"k%d"', b'"k"'], ids=["of different keys", "of one key"])
def test_what_follows_a_thousand_fields_is_not_read(key: bytes) -> None:
    fields = [(key % number if b"%" in key else key) + b":1" for number in range(1001)]
    with pytest.raises(ParseError, match="more than 1000 fields"):
        with_model(b"{" + b",".join(fields) + b", and no JSON", "b")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b'{"a":1', "no end", id="without its end"),
        pytest.param(b'{"a":1,}', "a key was expected", id="with a comma at its end"),
        pytest.param(b'{"a":1]', "expected to end", id="with another bracket at its end"),
        pytest.param(b'{"a":tru,"model":"a"}', "invalid character", id="with a value that is none"),
        pytest.param(b"[1]", "not a JSON object", id="that is a list"),
    ],
)
def test_a_faulty_body_is_refused_with_what_is_wrong(body: bytes, problem: str) -> None:
    with pytest.raises(ParseError, match=rf"cannot be replaced in the request body: .*{problem}"):
        with_model(body, "b")


@given(
    pieces=st.lists(
        st.sampled_from(
            [
                b'"model"',
                b'"mod\\u0065l"',
                b":",
                b",",
                b"{",
                b"}",
                b"[",
                b"]",
                b'"',
                b"\\",
                b" ",
                b"1",
                b"null",
                b'"x"',
                b"\n",
                b"\xff",
                b'"a\n\\u0041"',
            ]
        ),
        max_size=14,
    ).map(b"".join)
    | st.binary(max_size=20)
)
def test_any_bytes_are_rewritten_or_refused(pieces: bytes) -> None:
    body = b'{"a":1,' + pieces + b"}"
    try:
        rewritten = with_model(body, "b")
    except ParseError:
        return
    fields = RAW.decode(rewritten)
    assert fields == RAW.decode(body) | {"model": msgspec.Raw(b'"b"')}


def test_a_key_that_is_no_name_is_refused_before_it_is_made_into_a_text() -> None:
    # With one emoji a text takes four bytes for each of its letters.
    key = b'"%b\\ud83d\\ude00"' % (b"k" * 400_000)
    tracemalloc.start()
    try:
        with pytest.raises(ParseError, match="no key within 4096 bytes"):
            with_model(b'{%b:1,"model":"m"}' % key, "other")
        max_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max_bytes < 2 * len(key)


def test_a_key_as_long_as_allowed_is_kept() -> None:
    key = b"k" * 4093  # with its quotation marks and the colon 4096
    assert with_model(b'{"%b":1,"model":"m"}' % key, "n") == b'{"%b":1,"model":"n"}' % key
    with pytest.raises(ParseError, match=r"no key within 4096 bytes \(byte 1\)"):
        with_model(b'{"k%b":1,"model":"m"}' % key, "n")


@pytest.mark.parametrize("body", [b'{"model":"m"%b,"x":1}', b'{"x":1%b,"model":"m"}'])
def test_blanks_after_a_value_are_not_looked_at_one_by_one(body: bytes) -> None:
    class Watched(bytes):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            Watched.reads += isinstance(at, int)
            return super().__getitem__(at)

    sent = with_model(Watched(body % (b" \n\t\r" * 5000)), "n")
    assert sent == (body % (b" \n\t\r" * 5000)).replace(b'"m"', b'"n"')
    assert Watched.reads < 10
