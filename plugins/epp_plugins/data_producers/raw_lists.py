"""The elements of a JSON list as raw JSON, never more than a bound.

A list of ``msgspec.Raw`` makes an object of every element: of 64 MB of ``0,0,0`` 32 million, which
took 2.6 GB. A record in the form of a list makes those that it has fields for, and passes over all
others.
"""

from collections.abc import Callable
from typing import Final

import msgspec

MOST_ELEMENTS: Final = 2048
"""Of one list; a type with more fields takes long to make."""
_FEW = 64
"""Elements of nearly every list. To fill in the fields of a record costs 2 us instead of 20."""
_LONG_BYTES = 256 * 1024
"""From here on a second pass over the list would cost more than that."""
_ABSENT = msgspec.Raw(b"")


def _decoder(width: int) -> Callable[[bytes | msgspec.Raw], msgspec.Struct]:
    fields = [(f"element_{number}", msgspec.Raw, _ABSENT) for number in range(width)]
    record = msgspec.defstruct(f"First{width}", fields, array_like=True, gc=False)
    return msgspec.json.Decoder(record).decode


_decode_few = _decoder(_FEW)
_decode_most = _decoder(MOST_ELEMENTS)


def first_elements(array: bytes | msgspec.Raw) -> tuple[msgspec.Raw, ...]:
    """Return the first elements of the list ``array``, at most MOST_ELEMENTS.

    Raises:
        DecodeError: It is no list.
        RecursionError: It is nested too deeply.
    """
    is_long = memoryview(array).nbytes > _LONG_BYTES
    found = msgspec.structs.astuple((_decode_most if is_long else _decode_few)(array))
    if found[-1] is not _ABSENT and not is_long:
        found = msgspec.structs.astuple(_decode_most(array))
    return found if found[-1] is not _ABSENT else found[: found.index(_ABSENT)]
