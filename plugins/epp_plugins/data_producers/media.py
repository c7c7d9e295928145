"""Token costs of images, videos and audio in a prompt: parameters of ``token-producer``.

As in the Go EPP, a parameter that is missing, 0 or negative has its default.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from epp_plugins.data_producers.image_size import PictureSizes
from epp_plugins.header_numbers import positive_number

DEFAULT_WIDTH, DEFAULT_HEIGHT = 640, 360
DEFAULT_PIXELS_PER_TOKEN = 1024
DEFAULT_SECONDS = 10.0
DEFAULT_SAMPLE_FPS = 2.0
DEFAULT_SOURCE_FPS = 24.0
BYTES_PER_TOKEN = 4

FPS_HEADER = "x-llm-d-video-fps"
SECONDS_HEADER = "x-llm-d-video-duration-seconds"
RESOLUTION_HEADER = "x-llm-d-video-resolution"
_MOST = 1e9
"""Upper bound of seconds and of frames per second, which keeps their product finite."""
_RESOLUTION = re.compile(r"\s*([0-9]{1,9})\s*[xX]\s*([0-9]{1,9})\s*")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A section of the parameters."""


class Resolution(_Section, frozen=True):
    """Resolution of an image or of a frame."""

    width: int = DEFAULT_WIDTH
    """Width in pixels."""
    height: int = DEFAULT_HEIGHT
    """Height in pixels."""

    def or_default(self) -> tuple[int, int]:
        """Return (width, height), each replaced by its default if it is not positive."""
        width, height = self.width, self.height
        return width if width > 0 else DEFAULT_WIDTH, height if height > 0 else DEFAULT_HEIGHT


class Dynamic(_Section, frozen=True):
    """Tokens in proportion to the size."""

    factor: int = DEFAULT_PIXELS_PER_TOKEN
    """Pixels per token."""

    def tokens(self, size: tuple[int, int]) -> int:
        """Return the tokens of an image of ``size`` (width, height), at least 1."""
        factor = self.factor if self.factor > 0 else DEFAULT_PIXELS_PER_TOKEN
        return max(1, size[0] * size[1] // factor)


class StaticImage(_Section, frozen=True):
    """The same number of tokens for every image."""

    static_token: int = 1
    """Tokens of an image."""


class Image(_Section, frozen=True):
    """Token cost of an image."""

    mode: Literal["", "dynamic", "static"] = "dynamic"
    """``dynamic``: in proportion to the size; ``static``: the same for every image."""
    default_resolution: Resolution = Resolution()
    """Size of an image if its own is unknown (``dynamic``)."""
    dynamic: Dynamic = Dynamic()
    """Used with ``mode: dynamic`` only."""
    static: StaticImage = StaticImage()
    """Used with ``mode: static`` only."""

    def tokens(self, url: memoryview, sizes: PictureSizes) -> int:
        """Return the tokens of the image at ``url``, at least 1."""
        if self.mode == "static":
            return max(1, self.static.static_token)
        return self.dynamic.tokens(sizes.of_data_uri(url) or self.default_resolution.or_default())


class StaticFrame(_Section, frozen=True):
    """The same number of tokens for every frame."""

    num_tokens_per_frame: int = 1
    """Tokens of a frame."""


class TokensPerFrame(_Section, frozen=True):
    """Token cost of a frame."""

    mode: Literal["", "dynamic", "static"] = "dynamic"
    """``dynamic``: in proportion to the size; ``static``: the same for every frame."""
    dynamic: Dynamic = Dynamic()
    """Used with ``mode: dynamic`` only."""
    static: StaticFrame = StaticFrame()
    """Used with ``mode: static`` only."""

    def tokens(self, size: tuple[int, int]) -> int:
        """Return the tokens of a frame of ``size`` (width, height), at least 1."""
        if self.mode == "static":
            return max(1, self.static.num_tokens_per_frame)
        return self.dynamic.tokens(size)


class Sampled(_Section, frozen=True):
    """Frames sampled at the model's rate."""

    sample_fps: float = msgspec.field(default=DEFAULT_SAMPLE_FPS, name="sampleFPS")
    """Frames sampled per second."""
    temporal_patch_size: int = 1
    """Number of sampled frames that the model merges into one; 2 for models that merge pairs."""


class Strided(_Section, frozen=True):
    """Every Nth frame."""

    default_source_fps: float = msgspec.field(default=DEFAULT_SOURCE_FPS, name="defaultSourceFPS")
    """Frames per second of a video without the header ``x-llm-d-video-fps``."""
    frame_stride: int = 1
    """N: one of every N frames of the video counts."""


class Frames(_Section, frozen=True):
    """Number of frames of a video that count."""

    mode: Literal["", "sampled", "strided"] = "sampled"
    """``sampled``: duration times a rate; ``strided``: every Nth frame of the video."""
    min_frames: int = 0
    """Minimum frames of a video, before ``temporalPatchSize``; 0 for no minimum."""
    max_frames: int = 0
    """Maximum frames of a video, before ``temporalPatchSize``; 0 for no maximum."""
    sampled: Sampled = Sampled()
    """Used with ``mode: sampled`` only."""
    strided: Strided = Strided()
    """Used with ``mode: strided`` only."""

    def count(self, seconds: float, fps: float) -> int:
        """Return the frames of a video; ``fps`` is its frame rate, 0 if unknown."""
        sampled, strided = self.sampled, self.strided
        if self.mode == "strided":
            if fps <= 0:
                fps = _or(strided.default_source_fps, DEFAULT_SOURCE_FPS)
            return self._limited(int(seconds * fps) // max(1, strided.frame_stride))
        frames = self._limited(int(seconds * _or(sampled.sample_fps, DEFAULT_SAMPLE_FPS)))
        return frames // max(1, sampled.temporal_patch_size)

    def _limited(self, frames: int) -> int:
        frames = max(frames, self.min_frames)
        return min(frames, self.max_frames) if self.max_frames > 0 else frames


class Video(_Section, frozen=True):
    """Token cost of a video."""

    default_resolution: Resolution = Resolution()
    """Size of a frame without the header ``x-llm-d-video-resolution``."""
    default_duration: float = DEFAULT_SECONDS
    """Seconds of a video without the header ``x-llm-d-video-duration-seconds``."""
    tokens_per_frame: TokensPerFrame = TokensPerFrame()
    """Token cost of a frame."""
    frames: Frames = Frames()
    """Number of frames of a video that count."""
    max_video_tokens: int = 0
    """Maximum tokens of a video; 0 for no maximum."""

    def tokens(self, headers: "VideoHeaders") -> int:
        """Return the tokens of a video, at least 1."""
        seconds = headers.seconds or _or(self.default_duration, DEFAULT_SECONDS)
        size = headers.size or self.default_resolution.or_default()
        tokens = self.frames.count(seconds, headers.fps) * self.tokens_per_frame.tokens(size)
        if self.max_video_tokens > 0:
            tokens = min(tokens, self.max_video_tokens)
        return max(1, tokens)


@dataclass(frozen=True, slots=True)
class VideoHeaders:
    """Request headers that describe all videos of the request."""

    seconds: float = 0.0
    """Duration; 0 if unknown."""
    fps: float = 0.0
    """Frames per second; 0 if unknown."""
    size: tuple[int, int] | None = None

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> "VideoHeaders":
        """Read the headers; a malformed one counts as missing."""
        match = _RESOLUTION.fullmatch(headers.get(RESOLUTION_HEADER, ""))
        size = (int(match[1]), int(match[2])) if match else (0, 0)
        return cls(
            seconds=_positive(headers.get(SECONDS_HEADER, "")),
            fps=_positive(headers.get(FPS_HEADER, "")),
            size=size if min(size) > 0 else None,
        )


def audio_tokens(data: memoryview) -> int:
    """Return the tokens of audio data: as many as its base64 text would take."""
    return max(1, -(-len(data) // BYTES_PER_TOKEN))


def _or(value: float, default: float) -> float:
    return min(value, _MOST) if value > 0 else default


def _positive(text: str) -> float:
    return min(positive_number(text) or 0.0, _MOST)
