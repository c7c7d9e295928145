"""The client's model name is restored in responses, and nothing else changes."""

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.ext_proc.model_names import MAX_HELD_BYTES, MAX_TOKENS, ModelNames
from tools.fuzz.growth import calls

SSE = b'data: {"id":"1","model":"served","choices":[{"text":"a"}]}\n\n'


def renamed(body: bytes, *, sizes: list[int] | None = None, is_sse: bool | None = None) -> bytes:
    """Return ``body`` after passing it in chunks of ``sizes``, repeated."""
    is_event_stream = body.startswith((b"data", b"event")) if is_sse is None else is_sse
    names = ModelNames("served", "asked", is_event_stream=is_event_stream)
    passed = []
    at, turn = 0, 0
    while sizes and at < len(body):
        step = sizes[turn % len(sizes)]
        passed.append(names.feed(body[at : at + step], is_last=False))
        at, turn = at + step, turn + 1
    return b"".join((*passed, names.feed(b"" if sizes else body, is_last=True)))


_ROWS = [
    pytest.param(b'{"model":"served"}', b'{"model":"asked"}', id="at the top"),
    pytest.param(b'{"a":[1],"model" :\n "served"}', b'{"a":[1],"model" :\n "asked"}', id="blanks"),
    pytest.param(
        b'{"choices":[{"model":"served"}]}', b'{"choices":[{"model":"asked"}]}', id="in a choice"
    ),
    pytest.param(
        b'event: message_start\ndata: {"type":"message_start","message":{"model":"served"}}\n\n',
        b'event: message_start\ndata: {"type":"message_start","message":{"model":"asked"}}\n\n',
        id="Anthropic's first event",
    ),
    pytest.param(
        b'data: {"type":"response.completed","response":{"id":"r","model":"served"}}\r\n\r\n',
        b'data: {"type":"response.completed","response":{"id":"r","model":"asked"}}\r\n\r\n',
        id="an event of the Responses API",
    ),
    pytest.param(
        b'data:{"model":"served"}\n\ndata:{"model":"served"}',
        b'data:{"model":"asked"}\n\ndata:{"model":"asked"}',
        id="a last line without an end",
    ),
    pytest.param(
        b'{"model":"\\u0073erved","x":1.50}', b'{"model":"asked","x":1.50}', id="an escaped name"
    ),
]
_UNCHANGED = [
    pytest.param(b'{"model":"other"}', id="another name"),
    pytest.param(b'{"model":null,"x":"model"}', id="null"),
    pytest.param(b'{"model":{"model":"served"}}', id="an object"),
    pytest.param(b'{"text":"\\"model\\":\\"served\\""}', id="in a string"),
    pytest.param(b'{"text":"say \\"model","model2":"served"}', id="a quote in a string"),
    pytest.param(b'{"a \\"model":"served"}', id="the end of another key"),
    pytest.param(b'{"x":["model","served"]}', id="a value"),
    pytest.param(
        b'{"type":"message","content":[{"type":"tool_use","input":{"model":"served"}}]}',
        id="in the input of a tool",
    ),
    pytest.param(b'{"choices":[{"message":{"tool":{"model":"served"}}}]}', id="deep"),
    pytest.param(b"data: [DONE]\n\n", id="done"),
    pytest.param(b'{"model":"served', id="cut off in the name"),
    pytest.param(b'{"model"', id="cut off after the key"),
    pytest.param(b'{"model":', id="cut off before the name"),
    pytest.param(b'\x00\xff"}]{', id="no JSON"),
    pytest.param(b"", id="nothing"),
]


@pytest.mark.parametrize("sizes", [None, [1], [7], [3, 50]])
@pytest.mark.parametrize(("body", "expected"), _ROWS)
def test_the_clients_model_name_is_restored(
    body: bytes, expected: bytes, sizes: list[int] | None
) -> None:
    assert renamed(body, sizes=sizes) == expected


@pytest.mark.parametrize("sizes", [None, [1], [7], [3, 50]])
@pytest.mark.parametrize("is_sse", [False, True])
@pytest.mark.parametrize("body", _UNCHANGED)
def test_everything_else_passes_unchanged(
    body: bytes, is_sse: bool, sizes: list[int] | None
) -> None:
    assert renamed(body, sizes=sizes, is_sse=is_sse) == body


def test_the_names_in_a_document_after_its_own_are_content() -> None:
    body = b'{"model":"served","metadata":{"model":"served"},"model":"served"}'
    assert renamed(body) == body.replace(b"served", b"asked", 1)


def test_a_name_is_escaped() -> None:
    names = ModelNames("served", 'as"k\n', is_event_stream=False)
    assert json.loads(names.feed(b'{"model":"served"}', is_last=True)) == {"model": 'as"k\n'}


def test_whole_events_pass_at_once() -> None:
    names = ModelNames("served", "asked", is_event_stream=True)
    assert names.feed(SSE, is_last=False) == SSE.replace(b"served", b"asked")
    assert names.feed(SSE + b"data: {", is_last=False) == SSE.replace(b"served", b"asked")
    assert names.feed(SSE[7:], is_last=False) == SSE.replace(b"served", b"asked")


def test_a_document_passes_from_its_name_on() -> None:
    names = ModelNames("served", "asked", is_event_stream=False)
    assert names.feed(b'{"id":1,', is_last=False) == b""
    assert names.feed(b'"model":"served","choi', is_last=False) == b'{"id":1,"model":"asked","choi'
    assert names.feed(b"ces", is_last=False) == b"ces"


@pytest.mark.parametrize("prefix", [b'{"x":"', b'data: {"x":"'])
def test_a_document_without_a_model_name_is_not_held_forever(prefix: bytes) -> None:
    names = ModelNames("served", "asked", is_event_stream=prefix.startswith(b"data"))
    body = prefix + b"x" * MAX_HELD_BYTES
    assert names.feed(body, is_last=False) == body
    assert names.feed(b"more", is_last=False) == b"more"
    # The next line of an event stream is a document again.
    if prefix.startswith(b"data"):
        assert names.feed(b'"}\n\n' + SSE, is_last=False) == b'"}\n\n' + SSE.replace(
            b"served", b"asked"
        )


@pytest.mark.parametrize("prefix", [b'{"x":"', b'data: {"x":"', b'{"x":[' * 100])
def test_small_chunks_cost_no_more_than_their_bytes(prefix: bytes) -> None:
    def seconds(length: int) -> float:
        names = ModelNames("served", "asked", is_event_stream=prefix.startswith(b"data"))
        began = time.process_time()
        names.feed(prefix, is_last=False)
        for _ in range(length):
            names.feed(b'"model"', is_last=False)
        return time.process_time() - began

    # Eight times the chunks; quadratic work would take 64 times as long.
    few = min(seconds(1000) for _ in range(3))
    assert min(seconds(8000) for _ in range(3)) < 32 * few


@pytest.mark.parametrize("is_sse", [False, True])
def test_a_name_after_too_many_tokens_is_not_found(*, is_sse: bool) -> None:
    def work(depth: int) -> tuple[int, bytes]:
        names = ModelNames("served", "asked", is_event_stream=is_sse)
        line = b'{"x":' + b"[" * depth + b"]" * depth + b',"model":"served"}\n'
        passed: list[bytes] = []
        count = calls(lambda: passed.append(names.feed(line, is_last=True)))
        return count, passed[0].replace(line, b"unchanged")

    near = MAX_TOKENS // 2 - 8
    assert work(near)[1].endswith(b'"model":"asked"}\n')
    # Longer than MAX_HELD_BYTES: a shorter document is searched again at its end.
    count, passed = work(20 * near)
    assert passed == b"unchanged"
    assert work(80 * near) == (count, passed)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["served", "model"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.sampled_from(["model", "choices"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    fields=st.dictionaries(st.text() | st.sampled_from(["x", "output"]), _VALUES, max_size=4),
    at_end=st.booleans(),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    is_sse=st.booleans(),
)
def test_any_document_is_the_same_but_for_its_name(
    fields: dict[str, object], at_end: bool, sizes: list[int], is_sse: bool
) -> None:
    kept = {k: v for k, v in fields.items() if k not in {"model", "choices", "response", "message"}}
    document = {**kept, "model": "served"} if at_end else {"model": "served", **kept}
    body = json.dumps(document).encode()
    if is_sse:
        body = b"data: " + body + b"\n\n"
    passed = renamed(body, sizes=sizes, is_sse=is_sse)
    assert json.loads(re.sub(rb"^data: ", b"", passed)) == {**document, "model": "asked"}


_PIECES = [
    *(b'"model"', b'"served"', b'"choices"', b'"', b"served", b"data:"),
    *(b":", b"{", b"}", b"[", b"]", b",", b"\\", b"\n", b"\r\n", b" ", b"\xff", b"1"),
]
_FRAGMENTS = st.lists(st.sampled_from(_PIECES), max_size=30).map(b"".join)


@given(body=_FRAGMENTS, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@pytest.mark.parametrize("is_sse", [False, True])
def test_how_a_body_is_cut_makes_no_difference(body: bytes, sizes: list[int], is_sse: bool) -> None:
    assert renamed(body, sizes=sizes, is_sse=is_sse) == renamed(body, is_sse=is_sse)
