"""What counts as the id of a session, as a client sends it."""

from typing import Final

LONGEST_ID: Final = 256
"""Characters; ids are kept, so a client must not choose how much."""


def usable_id(value: object) -> str:
    """Return the id that ``value`` is, without blanks around it; "" if it is none.

    None are: other things than texts, what is empty or longer than 256 characters, and what has a
    character in it that cannot be printed, such as a control character.
    """
    if not isinstance(value, str):
        return ""
    text = value.strip()
    return text if len(text) <= LONGEST_ID and text.isprintable() else ""
