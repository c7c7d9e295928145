"""Errors of parsing."""


class ParseError(Exception):
    """The body is invalid for its path; the client gets the text."""


class NotJsonError(ParseError):
    """The body is not a valid JSON object.

    Attributes:
        detail: The decoder's message.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(f"the request body is not a JSON object that can be read: {detail}")
        self.detail = detail


class ModelMissingError(ParseError):
    """The body lacks the required model."""

    def __init__(self) -> None:
        super().__init__("model not found in request body: it must be a non-empty string")


class FieldMissingError(ParseError):
    """The body lacks the required field of the prompt."""

    def __init__(self, field: str) -> None:
        super().__init__(f"the request body must have a field {field!r}")
        self.field = field


class NoParserError(ParseError):
    """No parser claims the path."""


class NestedTooDeeplyError(ParseError):
    """The body is nested too deeply."""


class TooManyValuesError(ParseError):
    """The body's JSON has more values than the limit."""


class BodyTooLongError(ParseError):
    """The decoded body exceeds the length limit."""

    @classmethod
    def above(cls, limit_bytes: int) -> "BodyTooLongError":
        """Return the error for a body that decodes to more than ``limit_bytes``."""
        return cls(f"the request body decodes to more than {limit_bytes} bytes")


class CompressionRatioError(BodyTooLongError):
    """The body exceeds the limit on the compression ratio."""


class ParserFailedError(Exception):
    """A parser raised, or broke its contract: a bug in that plugin; the cause is chained."""
