"""Errors of tracing."""


class TracingError(Exception):
    """Tracing cannot start; the text is for the operator."""


class SendError(TracingError):
    """The collector did not take the spans.

    Attributes:
        is_temporary: Whether the same request may succeed later.
    """

    def __init__(self, text: str, *, is_temporary: bool) -> None:
        super().__init__(text)
        self.is_temporary = is_temporary
