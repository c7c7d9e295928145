"""Images in data URIs: their first bytes must give the same size as all of them."""

from base64 import b64encode

from epp_plugins.data_producers.image_size import PictureSizes
from epp_plugins.data_producers.media import Video, VideoHeaders
from tools.fuzz.tape import Tape

_FRAMES = (0xC0, 0xC1, 0xC2)
_MAX_SEGMENTS = 100
_PIECES = (
    b"\xff\xd8\xff\xe0\x00\x04ab",
    b"\xff\xc0\x00\x11\x08\x00\x10\x00\x20\x03",
    b"\xff\xc2\x00\x11\x08\x01\x10\x00\x00\x03",
    b"\xff\xd0",
    b"\xff",
    b"\xff\xda\x00\x02",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x20",
    b"GIF89a\x10\x00\x20\x00",
)
_HEADERS = ("x-llm-d-video-fps", "x-llm-d-video-duration-seconds", "x-llm-d-video-resolution")
_NUMBERS = ("", "1", "-1", "1e308", "1e999", "nan", "inf", "1920x1080", "0x0", "9" * 400, " 3 X 4 ")


def size_of(picture: bytes) -> tuple[int, int] | None:
    """Return width and height of a complete picture; None if they are not found."""
    size = None
    if picture.startswith(b"\x89PNG\r\n\x1a\n") and picture[12:16] == b"IHDR":
        size = int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])
    elif picture.startswith((b"GIF87a", b"GIF89a")):
        size = int.from_bytes(picture[6:8], "little"), int.from_bytes(picture[8:10], "little")
    elif picture.startswith(b"\xff\xd8\xff"):
        size = _jpeg_size(picture)
    return size if size is not None and min(size) > 0 else None


def _jpeg_size(picture: bytes) -> tuple[int, int] | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if len(picture) < at + 2 or picture[at] != 0xFF:
            return None
        marker = picture[at + 1]
        if marker in _FRAMES:
            return int.from_bytes(picture[at + 7 : at + 9]), int.from_bytes(
                picture[at + 5 : at + 7]
            )
        if marker == 0xFF:
            at += 1
        elif 0xD0 <= marker <= 0xD7:
            at += 2
        else:
            at += 2 + int.from_bytes(picture[at + 2 : at + 4])
    return None


def picture(tape: Tape) -> None:
    """Check a picture built from parts of pictures, or of random bytes."""
    if tape.flip():
        content = tape.rest()
    else:
        content = b"".join(tape.choice(_PIECES) for _ in range(1 + tape.number(8))) + tape.rest()
    uri = "data:image/jpeg;base64," + b64encode(content).decode()
    sizes = PictureSizes()
    assert sizes.of_data_uri(memoryview(uri.encode())) == size_of(content)
    text = b"data:image/" + content
    sizes.of_data_uri(memoryview(text))
    sizes.of_data_uri(memoryview(text[:20] + b"base64," + text[20:]))


def film(tape: Tape) -> None:
    """Check headers that describe a video's length and size."""
    headers = {
        name: tape.choice(_NUMBERS) if tape.flip() else tape.take(12).decode("latin-1")
        for name in _HEADERS
    }
    assert Video().tokens(VideoHeaders.read(headers)) >= 1
