"""HTTP/2 frames to send to a server, valid or not.

They are hyperframe's, and header blocks come as bytes, so nothing here knows the code under test.
"""

from collections.abc import Iterable

from hpack.hpack import encode_integer
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1

_CANCEL = 8


def headers(
    stream_id: int,
    block: bytes,
    *,
    end: bool = False,
    end_headers: bool = True,
    pad: int | None = None,
    priority: tuple[int, int, bool] | None = None,
) -> HeadersFrame:
    """Return HEADERS; ``priority`` is the other stream, the weight and whether it is exclusive."""
    flags = _flags(END_STREAM=end, END_HEADERS=end_headers, PADDED=pad is not None)
    frame = HeadersFrame(stream_id, block, pad_length=pad or 0, flags=flags)
    if priority is not None:
        frame.flags.add("PRIORITY")
        frame.depends_on, frame.stream_weight, frame.exclusive = priority
    return frame


def cut_headers(stream_id: int, pieces: list[bytes], *, end: bool = False) -> list[Frame]:
    """Return HEADERS and CONTINUATION with a block in ``pieces``."""
    frames: list[Frame] = [headers(stream_id, pieces[0], end=end, end_headers=len(pieces) == 1)]
    for number, piece in enumerate(pieces[1:], 2):
        flags = _flags(END_HEADERS=number == len(pieces))
        frames.append(ContinuationFrame(stream_id, piece, flags=flags))
    return frames


def data(
    stream_id: int, content: bytes = b"", *, end: bool = False, pad: int | None = None
) -> DataFrame:
    """Return DATA."""
    flags = _flags(END_STREAM=end, PADDED=pad is not None)
    return DataFrame(stream_id, content, pad_length=pad or 0, flags=flags)


def cut_data(
    stream_id: int, content: bytes = b"", *, end: bool = False, max_bytes: int = 16_384
) -> list[DataFrame]:
    """Return ``content`` in as many DATA frames as it takes, one at least."""
    pieces = [content[at : at + max_bytes] for at in range(0, len(content), max_bytes)] or [b""]
    frames = [data(stream_id, piece) for piece in pieces]
    if end:
        frames[-1].flags.add("END_STREAM")
    return frames


def settings(values: dict[int, int] | None = None, **names: int) -> SettingsFrame:
    """Return SETTINGS; ``initial_window_size=1`` and the like."""
    numbered = {getattr(SettingsFrame, name.upper()): value for name, value in names.items()}
    return SettingsFrame(settings={**(values or {}), **numbered})


def settings_ack() -> SettingsFrame:
    """Return the acknowledgement of SETTINGS."""
    return SettingsFrame(flags=["ACK"])


def ping(payload: bytes = b"12345678", *, ack: bool = False) -> PingFrame:
    """Return PING."""
    return PingFrame(opaque_data=payload, flags=_flags(ACK=ack))


def reset(stream_id: int, code: int = _CANCEL) -> RstStreamFrame:
    """Return RST_STREAM."""
    return RstStreamFrame(stream_id, code)


def window(stream_id: int, increment: int) -> WindowUpdateFrame:
    """Return WINDOW_UPDATE; stream 0 is the connection."""
    return WindowUpdateFrame(stream_id, increment)


def goaway(code: int = 0, last_stream_id: int = 0) -> GoAwayFrame:
    """Return GOAWAY."""
    return GoAwayFrame(last_stream_id=last_stream_id, error_code=code)


def priority(stream_id: int, depends_on: int = 0) -> PriorityFrame:
    """Return PRIORITY."""
    return PriorityFrame(stream_id, depends_on, 15)


def literals(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block of literals, which may be anything: neither table nor Huffman codes."""
    return b"".join(b"\x00" + string(name) + string(value) for name, value in fields)


def string(text: str) -> bytes:
    """Return a string literal of HPACK, without Huffman codes."""
    return bytes(encode_integer(len(text), 7)) + text.encode("latin-1")


def greeting(initial_window: int = MAX_WINDOW, **names: int) -> bytes:
    """Return what begins a connection on which flow control is never in the way."""
    opening: list[Frame] = [
        settings(None, **names, initial_window_size=initial_window),
        window(0, MAX_WINDOW - DEFAULT_WINDOW),
        settings_ack(),
    ]
    return PREFACE + serialized(opening)


def serialized(frames: Iterable[Frame | bytes]) -> bytes:
    """Return frames as bytes."""
    return b"".join(f if isinstance(f, bytes) else f.serialize() for f in frames)


def _flags(**flags: bool) -> list[str]:
    return [name for name, is_set in flags.items() if is_set]
