"""gRPC messages in HTTP bodies: five bytes that say compressed or not and how long, then it."""

from typing import Final

from epp.parsing.plugins import ParseError

MOST_HELD: Final = 1024 * 1024
"""Bytes of one message that are kept while its rest is on the way; of a longer one nothing is."""

_HEAD = 5


def message_of(body: bytes) -> bytes | None:
    """Return the first message in ``body``, which calls with one request have; None: compressed.

    Raises:
        ParseError: It is not all there.
    """
    end = _HEAD + int.from_bytes(body[1:_HEAD])
    if len(body) < max(_HEAD, end):
        raise ParseError(
            f"the request body is no gRPC message: {len(body)} bytes, of which the first"
            f" {_HEAD} are to tell the length of the rest"
        )
    return None if body[0] else body[_HEAD:end]


class Frames:
    """Finds the messages in a body that comes in pieces cut anywhere."""

    __slots__ = ("_held", "_skipped")

    def __init__(self) -> None:
        self._held = bytearray()
        self._skipped = 0

    def messages(self, chunk: bytes) -> list[bytes]:
        """Take the next piece and return what it completes, without what is compressed or empty."""
        if self._skipped:
            chunk, self._skipped = chunk[self._skipped :], max(0, self._skipped - len(chunk))
        held = self._held
        # Most chunks begin with a message and end with one, so that nothing has to be held.
        data: bytes | bytearray = chunk
        if held:
            held += chunk
            data = held
        size, at, found = len(data), 0, []
        while size - at >= _HEAD:
            end = at + _HEAD + int.from_bytes(data[at + 1 : at + _HEAD])
            if end > size:
                if end - at > MOST_HELD:
                    self._skipped, at = end - size, size
                break
            if end - at > _HEAD and not data[at]:
                found.append(bytes(data[at + _HEAD : end]))
            at = end
        if data is held:
            del held[:at]
        elif at < size:
            held += chunk[at:]
        return found
