"""Length-prefixed gRPC messages in HTTP bodies: a compression flag, four bytes of length, data."""

from typing import Final

from epp.parsing.plugins import ParseError

MAX_HELD_BYTES: Final = 1024 * 1024
"""Maximum length of an incomplete message that is buffered; longer ones are skipped."""

_HEAD = 5


def message_of(body: bytes) -> bytes | None:
    """Return the first message in ``body``, or None if it is compressed.

    Raises:
        ParseError: The message is incomplete.
    """
    end = _HEAD + int.from_bytes(body[1:_HEAD])
    if len(body) < max(_HEAD, end):
        raise ParseError(
            f"the request body is not a gRPC message: it has {len(body)} bytes, and its prefix of"
            f" {_HEAD} bytes is missing or announces more"
        )
    return None if body[0] else body[_HEAD:end]


class GrpcFrames:
    """Finds the messages in a body that arrives in arbitrary pieces."""

    __slots__ = ("_held", "_skipped")

    def __init__(self) -> None:
        self._held = bytearray()
        self._skipped = 0

    def messages(self, chunk: bytes) -> list[bytes]:
        """Add a piece and return the messages it completes, without compressed and empty ones."""
        if self._skipped:
            chunk, self._skipped = chunk[self._skipped :], max(0, self._skipped - len(chunk))
        held = self._held
        # Most chunks consist of whole messages, so nothing has to be buffered.
        data: bytes | bytearray = chunk
        if held:
            held += chunk
            data = held
        size, at, found = len(data), 0, []
        while size - at >= _HEAD:
            end = at + _HEAD + int.from_bytes(data[at + 1 : at + _HEAD])
            if end > size:
                if end - at > MAX_HELD_BYTES:
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
