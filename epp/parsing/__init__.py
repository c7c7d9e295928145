"""Request bodies to LLMRequest."""

from epp.parsing.errors import ParseError
from epp.parsing.openai import parse

__all__ = ["ParseError", "parse"]
