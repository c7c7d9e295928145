"""The extension point of parsers: which API a request speaks, and what its answer says.

One parser reads one family of APIs. Which one is asked is decided by the path alone: the longest
claim that the path ends with, then the parser without claims. A request without a body is shown to
none.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from epp.parsing.errors import (
    FieldMissingError,
    ModelMissingError,
    NestedTooDeeplyError,
    NotJsonError,
    ParseError,
)
from epp.scheduling import LLMRequest, Plugin

__all__ = [
    "AnswerReader",
    "FieldMissingError",
    "HttpCall",
    "ModelMissingError",
    "NestedTooDeeplyError",
    "NotJsonError",
    "ParseError",
    "Parser",
    "Usage",
]


@dataclass(slots=True)
class HttpCall:
    """A whole HTTP request, as a parser gets it."""

    request_id: str
    path: str
    """Its ``:path``, with a query string if there is one."""
    headers: Mapping[str, str]
    """By lower-case name, pseudo headers included."""
    body: bytes
    """Without content encoding; as the client sent it for a parser without claims."""
    claim: str = ""
    """The parser's claim that the path ends with; "" for one without claims."""
    may_lack_model: bool = False
    """A header or a rule names the model, so that the body may leave it out."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one answer, as the model server counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt's: those read from a cache."""


class AnswerReader(Protocol):
    """Looks for the usage in one answer while its body passes by; never raises."""

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body, cut anywhere; keep of it as little as possible."""

    def usage(self) -> Usage | None:
        """Return what the answer has said, None if nothing; called once, at its end."""


class Parser(Plugin):
    """Reads the requests of a family of APIs.

    Attributes:
        claims: Ends of the paths it reads, such as ``/chat/completions``; empty for a parser of
            everything that nobody claims. Of two parsers with the same claim the first one listed
            is asked.
    """

    claims: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def parse(self, call: HttpCall) -> LLMRequest:
        """Return what scheduling has to know of ``call``; unknown fields cost nothing.

        Raises:
            ParseError: It is not what its path promises (400); the text is for the client.
        """

    def rewrite(self, request: LLMRequest, body: bytes, model: str) -> bytes | None:
        """Return ``body`` with another model name; None if this API names none in its body.

        Raises:
            ParseError: The name cannot be replaced.
        """
        return None

    def answer_reader(self, request: LLMRequest, headers: Mapping[str, str]) -> AnswerReader | None:
        """Return what finds the usage in the answer with these headers; None if it has none."""
        return None
