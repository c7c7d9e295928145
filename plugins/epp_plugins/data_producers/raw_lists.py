"""The first elements of a JSON list as raw JSON, in bounded number.

Decoding to a list of ``msgspec.Raw`` creates an object per element: 64 MB of ``0,0,0`` became 32
million objects and took 2.6 GB. An array-like struct creates objects for its fields only and skips
the other elements.
"""

from collections.abc import Callable
from typing import Final

import msgspec

MAX_ELEMENTS: Final = 2048
"""Maximum elements of one list; a struct with more fields takes long to create."""
_FEW = 64
"""Nearly every list has fewer elements. A struct of 64 fields takes 2 us to fill instead of 20."""
_LONG_BYTES = 256 * 1024
"""Above this length a second pass over the list would cost more than the large struct."""
_ABSENT = msgspec.Raw(b"")


def _decoder(width: int) -> Callable[[bytes | msgspec.Raw], msgspec.Struct]:
    fields = [(f"element_{number}", msgspec.Raw, _ABSENT) for number in range(width)]
    record = msgspec.defstruct(f"First{width}", fields, array_like=True, gc=False)
    return msgspec.json.Decoder(record).decode


_decode_few = _decoder(_FEW)
_decode_most = _decoder(MAX_ELEMENTS)


def first_elements(array: bytes | msgspec.Raw) -> tuple[msgspec.Raw, ...]:
    """Return the first elements of the list ``array``, at most MAX_ELEMENTS.

    Raises:
        DecodeError: ``array`` is not a list.
        RecursionError: ``array`` is nested too deeply.
    """
    is_long = memoryview(array).nbytes > _LONG_BYTES
    found = msgspec.structs.astuple((_decode_most if is_long else _decode_few)(array))
    if found[-1] is not _ABSENT and not is_long:
        found = msgspec.structs.astuple(_decode_most(array))
    return found if found[-1] is not _ABSENT else found[: found.index(_ABSENT)]
