from pathlib import Path

import pytest

from epp.parsing.plugins import HttpCall, ParseError, Usage
from epp.testing import load_plugin, make_plugin

ExampleParser = load_plugin(Path(__file__).with_name("example_parser.py"), "ExampleParser")
PLUGIN = make_plugin(ExampleParser)
BODY = b'{"model": "tiny", "query": "q", "documents": ["a", "b"], "top_n": 1}'


def call_of(body: bytes) -> HttpCall:
    return HttpCall(request_id="1", path="/v1/rerank", headers={}, body=body)


def test_model_and_prompt_are_read() -> None:
    request = PLUGIN.parse(call_of(BODY))
    assert (request.target_model, request.prompt) == ("tiny", b'["a", "b"]')


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(b"no JSON", "malformed", id="no JSON"),
        pytest.param(b'{"model": "tiny"}', "missing required field `documents`", id="no documents"),
        pytest.param(b'{"a": ' * 100_000, "recursion", id="nested too deeply"),
    ],
)
def test_a_body_that_is_no_request_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(ParseError, match=text):
        PLUGIN.parse(call_of(body))


@pytest.mark.parametrize(
    ("chunks", "want"),
    [
        pytest.param([b'{"usage": {"prompt', b'_tokens": 7}}'], Usage(prompt_tokens=7), id="cut"),
        pytest.param([b'{"results": []}'], None, id="no usage"),
        pytest.param([b"x" * 600_000, b"x" * 600_000], None, id="too long"),
    ],
)
def test_usage(chunks: list[bytes], want: Usage | None) -> None:
    request = PLUGIN.parse(call_of(BODY))
    reader = PLUGIN.response_reader(request, {})
    for chunk in chunks:
        reader.feed(chunk)
    assert reader.usage() == want
