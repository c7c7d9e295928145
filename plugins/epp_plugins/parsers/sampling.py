"""The maximum output tokens in the sampling parameters of vLLM and SGLang."""

import msgspec

from epp_plugins.parsers.json_bodies import ABSENT, output_limit


class _Sampling(msgspec.Struct):
    max_tokens: msgspec.Raw = ABSENT
    max_new_tokens: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(_Sampling).decode


def max_tokens_of(sampling_params: msgspec.Raw) -> int | None:
    """Return ``max_tokens``, or SGLang's ``max_new_tokens``; None if there is no such number.

    A list of parameters, as SGLang takes for several prompts, has none.
    """
    try:
        sampling = _decode(sampling_params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return output_limit(
        memoryview(sampling_params).nbytes, sampling.max_tokens, sampling.max_new_tokens
    )
