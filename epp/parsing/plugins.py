"""The extension point of parsers, which read the requests and responses of an API.

One parser reads one family of APIs. The path alone selects it: the parser with the longest claim
that the path ends with, or else the parser without claims. A request without a body is not parsed.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from epp.parsing.errors import (
    FieldMissingError,
    ModelMissingError,
    NestedTooDeeplyError,
    NotJsonError,
    ParseError,
)
from epp.parsing.json_density import estimate_values
from epp.scheduling import LLMRequest, Plugin

__all__ = [
    "H2C",
    "FieldMissingError",
    "HttpCall",
    "ModelMissingError",
    "NestedTooDeeplyError",
    "NotJsonError",
    "ParseError",
    "Parser",
    "ResponseReader",
    "Usage",
    "estimate_values",
]


H2C: Final = "kubernetes.io/h2c"
"""The ``appProtocol`` of servers of HTTP/2 without TLS, such as gRPC."""


@dataclass(slots=True)
class HttpCall:
    """A whole HTTP request, the input of a parser."""

    request_id: str
    path: str
    """Its ``:path``, with a query string if there is one."""
    headers: Mapping[str, str]
    """By lower-case name, pseudo headers included."""
    body: bytes
    """Without content encoding; for a parser without claims, as the client sent it."""
    claim: str = ""
    """The parser's claim that the path ends with; "" for one without claims."""
    may_lack_model: bool = False
    """Whether the body may omit the model, because a header or a rule sets it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one response, as the model server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that were read from a cache."""


class ResponseReader(Protocol):
    """Finds the usage in one response while its body passes through; never raises."""

    def feed(self, chunk: bytes) -> None:
        """Process the next piece of the body, cut anywhere; keep as little of it as possible."""

    def usage(self) -> Usage | None:
        """Return the usage, None if the response has none; called once, at its end."""


class Parser(Plugin):
    """Reads the requests of a family of APIs.

    Attributes:
        claims: Suffixes of the paths it reads, such as ``/chat/completions``; empty for a parser of
            all paths that no other parser claims. Of two parsers with the same claim, the first one
            in the configuration is used.
        app_protocols: The values of an InferencePool's ``appProtocol`` with which its servers read
            such requests; empty for any.
    """

    claims: ClassVar[tuple[str, ...]] = ()
    app_protocols: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def parse(self, call: HttpCall) -> LLMRequest:
        """Return the request that ``call`` contains.

        Raises:
            ParseError: The body is invalid for its path (400); the client gets the text.
        """

    def rewrite(self, request: LLMRequest, body: bytes, model: str) -> bytes | None:
        """Return ``body`` with another model name; None if this API has no model in its body.

        Raises:
            ParseError: The name cannot be replaced.
        """
        return None

    def response_reader(
        self, request: LLMRequest, headers: Mapping[str, str]
    ) -> ResponseReader | None:
        """Return a reader for the response with these headers; None if it has no usage to read."""
        return None
