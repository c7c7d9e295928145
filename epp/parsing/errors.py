"""Errors of parsing."""


class ParseError(Exception):
    """The body is not what its path promises; the text is meant for the client."""


class NoParserError(ParseError):
    """No parser reads requests of that path."""


class NestedTooDeeplyError(ParseError):
    """The body is nested deeper than can be read."""


class BodyTooLongError(ParseError):
    """The body is longer without its content encoding than what is taken in."""


class ParserFailedError(Exception):
    """A parser raised, or broke its contract: a bug in that plugin; the cause is chained."""
