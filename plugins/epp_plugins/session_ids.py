"""What counts as the id of a session, as a client sends it."""

from typing import Final

from epp.scheduling import bounded_id

LONGEST_ID: Final = 256
"""Characters; ids are kept, so a client must not choose how much."""


def usable_id(value: object) -> str:
    """Return the id that ``value`` is, without blanks around it; "" if it is none.

    One that takes more than 64 bytes is replaced, as :func:`bounded_id` says.

    None are: other things than texts, what is empty or longer than 256 characters, and what has a
    character in it that cannot be printed, such as a control character.
    """
    if not isinstance(value, str):
        return ""
    text = value.strip()
    return bounded_id(text) if len(text) <= LONGEST_ID and text.isprintable() else ""
