"""What pictures, films and sounds in a prompt cost: parameters of ``token-producer`` and formulas.

As in the reference, a parameter that is left out, 0 or negative counts as its default.
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
"""Seconds, and frames per second, are cut to this: their product stays a number."""
_RESOLUTION = re.compile(r"\s*([0-9]{1,9})\s*[xX]\s*([0-9]{1,9})\s*")


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A part of the parameters."""


class Resolution(_Section, frozen=True):
    """Pixels of a picture."""

    width: int = DEFAULT_WIDTH
    """Pixels from left to right."""
    height: int = DEFAULT_HEIGHT
    """Pixels from top to bottom."""

    def or_default(self) -> tuple[int, int]:
        """Return width and height, each by itself replaced by its default if there is none."""
        width, height = self.width, self.height
        return width if width > 0 else DEFAULT_WIDTH, height if height > 0 else DEFAULT_HEIGHT


class Dynamic(_Section, frozen=True):
    """Tokens by size."""

    factor: int = DEFAULT_PIXELS_PER_TOKEN
    """Pixels per token."""

    def tokens(self, size: tuple[int, int]) -> int:
        """Return how many tokens a picture of that size takes, at least 1."""
        factor = self.factor if self.factor > 0 else DEFAULT_PIXELS_PER_TOKEN
        return max(1, size[0] * size[1] // factor)


class StaticImage(_Section, frozen=True):
    """The same for each picture."""

    static_token: int = 1
    """Tokens of a picture."""


class Image(_Section, frozen=True):
    """What a picture costs."""

    mode: Literal["", "dynamic", "static"] = "dynamic"
    """``dynamic``: by its size; ``static``: the same for each."""
    default_resolution: Resolution = Resolution()
    """Size of a picture whose own is not known (``dynamic``)."""
    dynamic: Dynamic = Dynamic()
    """Looked at with ``mode: dynamic`` only."""
    static: StaticImage = StaticImage()
    """Looked at with ``mode: static`` only."""

    def tokens(self, url: memoryview, sizes: PictureSizes) -> int:
        """Return how many tokens the picture at ``url`` takes, at least 1."""
        if self.mode == "static":
            return max(1, self.static.static_token)
        return self.dynamic.tokens(sizes.of_data_uri(url) or self.default_resolution.or_default())


class StaticFrame(_Section, frozen=True):
    """The same for each frame."""

    num_tokens_per_frame: int = 1
    """Tokens of a frame."""


class TokensPerFrame(_Section, frozen=True):
    """What a frame costs."""

    mode: Literal["", "dynamic", "static"] = "dynamic"
    """``dynamic``: by its size; ``static``: the same for each."""
    dynamic: Dynamic = Dynamic()
    """Looked at with ``mode: dynamic`` only."""
    static: StaticFrame = StaticFrame()
    """Looked at with ``mode: static`` only."""

    def tokens(self, size: tuple[int, int]) -> int:
        """Return how many tokens a frame of that size takes, at least 1."""
        if self.mode == "static":
            return max(1, self.static.num_tokens_per_frame)
        return self.dynamic.tokens(size)


class Sampled(_Section, frozen=True):
    """Frames at a rate of the model's."""

    sample_fps: float = msgspec.field(default=DEFAULT_SAMPLE_FPS, name="sampleFPS")
    """Frames taken of each second."""
    temporal_patch_size: int = 1
    """So many of the frames taken become one, as in models that merge pairs of frames: 2."""


class Strided(_Section, frozen=True):
    """Every Nth frame."""

    default_source_fps: float = msgspec.field(default=DEFAULT_SOURCE_FPS, name="defaultSourceFPS")
    """Frames per second of a film without the header ``x-llm-d-video-fps``."""
    frame_stride: int = 1
    """The N: of so many frames of the film one counts."""


class Frames(_Section, frozen=True):
    """How many frames of a film count."""

    mode: Literal["", "sampled", "strided"] = "sampled"
    """``sampled``: seconds times a rate; ``strided``: every Nth of the film's own."""
    min_frames: int = 0
    """Fewest frames of a film, before ``temporalPatchSize``; 0 for no such limit."""
    max_frames: int = 0
    """Most frames of a film, before ``temporalPatchSize``; 0 for no such limit."""
    sampled: Sampled = Sampled()
    """Looked at with ``mode: sampled`` only."""
    strided: Strided = Strided()
    """Looked at with ``mode: strided`` only."""

    def count(self, seconds: float, fps: float) -> int:
        """Return the frames of a film; ``fps`` is its own rate, 0 if it is not known."""
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
    """What a film costs."""

    default_resolution: Resolution = Resolution()
    """Size of a frame without the header ``x-llm-d-video-resolution``."""
    default_duration: float = DEFAULT_SECONDS
    """Seconds of a film without the header ``x-llm-d-video-duration-seconds``."""
    tokens_per_frame: TokensPerFrame = TokensPerFrame()
    """What a frame costs."""
    frames: Frames = Frames()
    """How many frames of a film count."""
    max_video_tokens: int = 0
    """Most tokens of a film; 0 for no such limit."""

    def tokens(self, headers: "VideoHeaders") -> int:
        """Return how many tokens the film takes, at least 1."""
        seconds = headers.seconds or _or(self.default_duration, DEFAULT_SECONDS)
        size = headers.size or self.default_resolution.or_default()
        tokens = self.frames.count(seconds, headers.fps) * self.tokens_per_frame.tokens(size)
        if self.max_video_tokens > 0:
            tokens = min(tokens, self.max_video_tokens)
        return max(1, tokens)


@dataclass(frozen=True, slots=True)
class VideoHeaders:
    """What the client says of all films of its request."""

    seconds: float = 0.0
    """0 for nothing."""
    fps: float = 0.0
    """0 for nothing."""
    size: tuple[int, int] | None = None

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> "VideoHeaders":
        """Read them; what is malformed counts as not said."""
        match = _RESOLUTION.fullmatch(headers.get(RESOLUTION_HEADER, ""))
        size = (int(match[1]), int(match[2])) if match else (0, 0)
        return cls(
            seconds=_positive(headers.get(SECONDS_HEADER, "")),
            fps=_positive(headers.get(FPS_HEADER, "")),
            size=size if min(size) > 0 else None,
        )


def audio_tokens(data: memoryview) -> int:
    """Return how many tokens a sound takes: as many as its base64 text would."""
    return max(1, -(-len(data) // BYTES_PER_TOKEN))


def _or(value: float, default: float) -> float:
    return min(value, _MOST) if value > 0 else default


def _positive(text: str) -> float:
    return min(positive_number(text) or 0.0, _MOST)
