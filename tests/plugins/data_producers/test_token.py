import msgspec
import pytest

from epp.scheduling import CycleState
from epp.testing import make_request
from epp_plugins.data_producers.token import Params, TokenProducer
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt


@pytest.mark.parametrize(
    ("prompt", "want"),
    [
        pytest.param(b'"ab"', 1, id="four bytes are a token"),
        pytest.param(b'"abc"', 2, id="a fifth byte begins another"),  # ceil(5/4)
        pytest.param(b'[{"role":"user"}]', 5, id="roles count"),  # ceil(17/4)
    ],
)
def test_count(prompt: bytes, want: int) -> None:
    state = CycleState()
    TokenProducer("token", Params()).prepare(make_request(prompt=prompt), state)
    assert state.read(TOKENIZED_PROMPT) == TokenizedPrompt(prompt, want)


def test_the_prompt_is_not_copied() -> None:
    request, state = make_request(prompt=b'"a long prompt"'), CycleState()
    TokenProducer("token", Params()).prepare(request, state)
    written = state.read(TOKENIZED_PROMPT)
    assert written is not None
    assert written.data is request.prompt


def test_a_request_without_a_prompt_gets_nothing() -> None:
    state = CycleState()
    TokenProducer("token", Params()).prepare(make_request(), state)
    assert state.read(TOKENIZED_PROMPT) is None


@pytest.mark.parametrize(
    "parameters",
    [{}, {"estimate": {}}, {"estimate": {}, "modelName": "llama"}],
    ids=["nothing", "estimate mode", "a model name"],
)
def test_estimate_mode_is_accepted(parameters: dict[str, object]) -> None:
    assert isinstance(msgspec.convert(parameters, Params), Params)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"vllm": {"url": "http://x"}}, "mode `vllm` is not supported", id="vllm"),
        pytest.param(
            {"udsTokenizerConfig": {}}, "mode `udsTokenizerConfig` is not supported", id="uds"
        ),
        pytest.param(
            {"estimate": {"image": {"mode": "static"}}},
            r"`image` is not supported.* at `\$.estimate`",
            id="image estimates",
        ),
        pytest.param({"estimate": {"video": {}}}, "`video` is not supported", id="video estimates"),
        pytest.param({"mode": "estimate"}, "unknown field `mode`", id="unknown field"),
    ],
)
def test_what_cannot_be_honoured_is_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(parameters, Params)
