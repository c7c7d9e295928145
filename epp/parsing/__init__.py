"""Request bodies to LLMRequest, and back with another model name."""

from epp.parsing.errors import ParseError
from epp.parsing.openai import parse
from epp.parsing.rewriting import rewrite_model

__all__ = ["ParseError", "parse", "rewrite_model"]
