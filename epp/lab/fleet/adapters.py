"""Loading and unloading of LoRA adapters at run time, in the formats of vLLM and SGLang."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from epp.lab.fleet.errors import UnknownModelError, VllmApiError
from epp.lab.fleet.process import FakeProcess

LOAD = (b"/v1/load_lora_adapter", b"/load_lora_adapter")
UNLOAD = (b"/v1/unload_lora_adapter", b"/unload_lora_adapter")
"""Paths of vLLM and of SGLang."""


class InvalidInputError(VllmApiError):
    """A request names an adapter that is loaded already."""

    kind = "InvalidUserInput"


class _Body(msgspec.Struct):
    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False


_decode = msgspec.json.Decoder(_Body).decode


def load_adapter(process: FakeProcess, body: bytes) -> str:
    """Add an adapter to the models of a process; return vLLM's message.

    Raises:
        ApiError: The request is invalid, or the adapter is loaded already.
    """
    request = _decoded(body)
    name, api = request.lora_name, process.api
    if not name or not request.lora_path:
        raise VllmApiError("Both 'lora_name' and 'lora_path' must be provided.")
    if name == api.model:
        raise InvalidInputError(f"The lora adapter '{name}' has the name of the base model.")
    if name in api.adapters and not request.load_inplace:
        raise InvalidInputError(
            f"The lora adapter '{name}' has already been loaded. "
            "If you want to load the adapter in place, set 'load_inplace' to True."
        )
    _set_adapters(process, tuple(dict.fromkeys((*api.adapters, name))))
    return f"Success: LoRA adapter '{name}' added successfully."


def unload_adapter(process: FakeProcess, body: bytes) -> str:
    """Remove an adapter from the models of a process; return vLLM's message.

    Raises:
        UnknownModelError: It is not loaded.
        ApiError: The request is invalid.
    """
    name = _decoded(body).lora_name
    if not name:
        raise VllmApiError("'lora_name' needs to be provided to unload a LoRA adapter.")
    if name not in process.api.adapters:
        raise UnknownModelError(f"The lora adapter '{name}' cannot be found.")
    _set_adapters(process, tuple(each for each in process.api.adapters if each != name))
    return f"Success: LoRA adapter '{name}' removed successfully."


def _set_adapters(process: FakeProcess, adapters: tuple[str, ...]) -> None:
    process.api.adapters = adapters
    for engine in process.engines:
        engine.config = replace(engine.config, adapters=adapters)


def _decoded(body: bytes) -> _Body:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise VllmApiError(str(error)) from error
