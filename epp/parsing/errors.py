"""Errors of parsing."""


class ParseError(Exception):
    """The body is not what its path promises; the text is meant for the client."""
