"""Errors of the doctor."""


class DoctorError(Exception):
    """Root of the doctor's errors; the text never quotes the input, which may contain secrets."""


class UnreadableError(DoctorError):
    """The input is missing, is neither YAML nor JSON, or is not an Envoy configuration."""
