"""Errors of the transport."""


class TransportError(Exception):
    """Base of every error a transport raises."""


class ListenError(TransportError):
    """The address to listen on cannot be had."""

    def __init__(
        self, address: str, reason: str, remedy: str = "is another process using the port?"
    ) -> None:
        super().__init__(f"cannot listen on {address}: {reason}; {remedy}")
        self.address = address
        self.reason = reason


class TlsError(TransportError):
    """TLS cannot be offered as it is configured."""

    def __init__(self, subject: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {reason}; {remedy}")
        self.subject = subject
