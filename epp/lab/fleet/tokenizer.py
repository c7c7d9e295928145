"""vLLM's `/tokenize` and `/detokenize`, for the fake tokenizer.

Four bytes are one token, as the fake engine counts them; its id is their big-endian number.
"""

from __future__ import annotations

from typing import Any

import msgspec

from epp.lab.fleet.errors import UnknownModelError, VllmApiError
from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN
from epp.lab.fleet.openai_bodies import ChatBody

TOKENIZE = b"/tokenize"
DETOKENIZE = b"/detokenize"
_TOKENS = 2 ** (8 * BYTES_PER_TOKEN)


class _TokenizeBody(msgspec.Struct):
    model: str | None = None
    prompt: str | None = None
    messages: object = None
    return_token_strs: bool | None = False


class _DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str | None = None


_tokenize = msgspec.json.Decoder(_TokenizeBody)
_chat = msgspec.json.Decoder(ChatBody)
_detokenize = msgspec.json.Decoder(_DetokenizeBody)


def token_ids(text: bytes) -> list[int]:
    """Return the tokens of a text."""
    starts = range(0, len(text), BYTES_PER_TOKEN)
    return [int.from_bytes(text[at : at + BYTES_PER_TOKEN], "big") for at in starts]


def token_text(tokens: list[int]) -> str:
    """Return the text of tokens; the last one may have fewer bytes than the others."""
    whole = b"".join([each.to_bytes(BYTES_PER_TOKEN, "big").lstrip(b"\0") for each in tokens])
    return whole.decode(errors="replace")


def tokenized_body(body: bytes, models: tuple[str, ...], max_model_len: int) -> bytes:
    """Return the response to a request for the tokens of a prompt or of a chat.

    Raises:
        UnknownModelError: It names another model.
        ApiError: It is invalid.
    """
    parsed = _decoded(_tokenize, body)
    _check_model(parsed.model, models)
    if parsed.messages is not None:
        text = _decoded(_chat, body).prompt()
    elif parsed.prompt is not None:
        text = parsed.prompt.encode()
    else:
        raise VllmApiError("One of prompt and messages is required.", param="prompt")
    tokens = token_ids(text)
    strings = [token_text([each]) for each in tokens] if parsed.return_token_strs else None
    return msgspec.json.encode(
        {
            "count": len(tokens),
            "max_model_len": max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


def detokenized_body(body: bytes, models: tuple[str, ...]) -> bytes:
    """Return the response to a request for the text of tokens.

    Raises:
        UnknownModelError: It names another model.
        ApiError: It is invalid.
    """
    parsed = _decoded(_detokenize, body)
    _check_model(parsed.model, models)
    for token in parsed.tokens:
        if not 0 <= token < _TOKENS:
            raise VllmApiError(
                f"There is no token {token}: they are below {_TOKENS}.", param="tokens"
            )
    return msgspec.json.encode({"prompt": token_text(parsed.tokens)})


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:  # noqa: ANN401 - its type
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise VllmApiError(str(error)) from error


def _check_model(name: str | None, models: tuple[str, ...]) -> None:
    if name is not None and name not in models:
        raise UnknownModelError(f"The model `{name}` does not exist.", param="model")
