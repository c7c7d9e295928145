"""Errors of the transport."""


class TransportError(Exception):
    """Base of all errors of the transport."""


class ListenError(TransportError):
    """The server cannot listen on the address."""

    def __init__(
        self, address: str, reason: str, remedy: str = "is another process using the port?"
    ) -> None:
        super().__init__(f"cannot listen on {address}: {reason}; {remedy}")
        self.address = address
        self.reason = reason


class TlsError(TransportError):
    """TLS settings or files cannot be used."""

    def __init__(self, subject: str, reason: str, remedy: str) -> None:
        super().__init__(f"{subject}: {reason}; {remedy}")
        self.subject = subject
