"""``max-prompt-filter``: sends long prompts only to servers that are made for them.

A prompt longer than ``maxPromptBytes`` may go only where the label ``label`` is ``"true"``; a
shorter one may go anywhere. ``maxPromptBytes`` is, if not given, what the environment variable
MAX_PROMPT_BYTES says, and 65536 without that.

Reads:  ``request.prompt``, ``endpoint.labels``.
Example::

    plugins:
      - type: max-prompt-filter
        parameters: {maxPromptBytes: 32768}
"""

import os
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from epp.scheduling import CycleState, Endpoint, Filter, LLMRequest


def bytes_from_environment() -> int:
    """Return MAX_PROMPT_BYTES, or 65536 if it is not set."""
    text = os.environ.get("MAX_PROMPT_BYTES", "65536")
    if not text.isdecimal():
        raise ValueError(f"MAX_PROMPT_BYTES must be a whole number, not {text!r}")
    return int(text)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``max-prompt-filter``."""

    max_prompt_bytes: Annotated[int, msgspec.Meta(ge=0)] = msgspec.field(
        default_factory=bytes_from_environment
    )
    """The longest prompt, as JSON in bytes, that any server may get."""
    label: str = "long-context"
    """Servers on which this label is "true" get longer ones too."""


class MaxPromptFilter(Filter):
    """Keeps long prompts away from servers that are not made for them."""

    type: ClassVar[str] = "max-prompt-filter"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._longest = params.max_prompt_bytes
        self._label = params.label

    def filter(
        self, request: LLMRequest, endpoints: Sequence[Endpoint], state: CycleState
    ) -> list[Endpoint]:
        if len(request.prompt) <= self._longest:
            return list(endpoints)
        return [each for each in endpoints if each.labels.get(self._label) == "true"]
