"""Keeps bytes that wait, however small the pieces they come in.

A peer may send a message one byte a frame. A list of such pieces would cost fifty times their size,
and one growing buffer would copy a large message again and again; so small pieces are gathered in
buffers of 64 KB, and large ones are kept as they are.
"""

from collections.abc import MutableSequence

Piece = bytes | bytearray | memoryview

_SMALL_BYTES = 2048
_GATHERED_BYTES = 64 << 10


def keep(pieces: MutableSequence[Piece], piece: Piece) -> None:
    """Append ``piece`` to ``pieces``, or to the buffer at their end."""
    if len(piece) >= _SMALL_BYTES:
        pieces.append(piece)
        return
    last = pieces[-1] if pieces else None
    if type(last) is bytearray and len(last) < _GATHERED_BYTES:
        last += piece
    else:
        pieces.append(bytearray(piece))
