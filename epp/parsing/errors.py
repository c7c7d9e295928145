"""Errors of parsing."""


class ParseError(Exception):
    """The body is not what its path promises; the text is meant for the client."""


class NotJsonError(ParseError):
    """The body is no JSON object that can be read.

    Attributes:
        detail: What is wrong with it, as the decoder says.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(f"the request body is not a JSON object that can be read: {detail}")
        self.detail = detail


class ModelMissingError(ParseError):
    """The body names no model, and must."""

    def __init__(self) -> None:
        super().__init__("model not found in request body: it must be a non-empty string")


class FieldMissingError(ParseError):
    """The body has no prompt, under whatever name its API has for it."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the request body must have a field {field!r}")
        self.field = field


class NoParserError(ParseError):
    """No parser reads requests of that path."""


class NestedTooDeeplyError(ParseError):
    """The body is nested deeper than can be read."""


class TooManyValuesError(ParseError):
    """The body's JSON has more values than the limit."""


class BodyTooLongError(ParseError):
    """The body is longer without its content encoding than what is taken in."""

    @classmethod
    def above(cls, limit_bytes: int) -> "BodyTooLongError":
        """Return the error for a body of more than ``limit_bytes``."""
        return cls(f"the request body is longer than {limit_bytes} bytes")


class CompressionRatioError(BodyTooLongError):
    """The body decodes to too many times its received size."""


class ParserFailedError(Exception):
    """A parser raised, or broke its contract: a bug in that plugin; the cause is chained."""
