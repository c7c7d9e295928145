"""What keeps the doctor from reading an Envoy."""


class DoctorError(Exception):
    """Root of the doctor's errors; the text is for the user and holds nothing of the input."""


class UnreadableError(DoctorError):
    """The input is not there, is neither YAML nor JSON, or is no configuration of Envoy's."""
