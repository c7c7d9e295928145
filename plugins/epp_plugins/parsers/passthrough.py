"""``passthrough-parser``: accepts requests that no other parser reads, such as multipart bodies.

The body is passed through unchanged and is not read. The request has no model and no prompt, so it
is scheduled by load only, and model rewrites do not apply. The parser accepts every path, so it
must be the last one: a parser listed after it is never used.

Reads:  nothing.
Writes: a request without model and prompt.
Example::

    plugins:
      - type: passthrough-parser
    requestHandler:
      parsers:
        - pluginRef: openai-parser
        - pluginRef: passthrough-parser
"""

from typing import ClassVar

import msgspec

from epp.parsing.plugins import HttpCall, Parser
from epp.scheduling import LLMRequest


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``passthrough-parser``: none."""


class PassthroughParser(Parser):
    """Accepts every request without reading its body."""

    type: ClassVar[str] = "passthrough-parser"

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def parse(self, call: HttpCall) -> LLMRequest:
        return LLMRequest(
            request_id=call.request_id,
            target_model="",
            path=call.path,
            headers=call.headers,
            body_bytes=len(call.body),
        )
