"""Validation of session ids that clients send."""

from typing import Final

from epp.scheduling import bounded_id

LONGEST_ID: Final = 256
"""Maximum characters: ids are stored, so clients must not choose their length."""


def usable_id(value: object) -> str:
    """Return ``value`` as an id, without surrounding spaces; "" if it is invalid.

    An id of more than 64 bytes is shortened by :func:`bounded_id`. A value is invalid if it is not
    a string, is empty, has more than 256 characters, or contains an unprintable character.
    """
    if not isinstance(value, str):
        return ""
    text = value.strip()
    return bounded_id(text) if len(text) <= LONGEST_ID and text.isprintable() else ""
