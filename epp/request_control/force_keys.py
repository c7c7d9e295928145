"""The keys that sign ``x-epp-force-endpoint``: lines of a file, which is followed while running.

Several keys allow one to be replaced without a gap: add the new one, sign with it, then remove the
old one.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from epp.inputs import FollowedFile, UnreadableFileError

MIN_KEY_BYTES: Final = 32
MAX_KEYS: Final = 8
"""Each is tried for each request that has the header."""
POLL_SECONDS: Final = 1.0

_OPTION: Final = "--force-endpoint-key-file"
_MAKE_ONE: Final = "make one with `openssl rand -hex 32`"

_log = structlog.get_logger(__name__)


class ForceKeyError(Exception):
    """The key file cannot be used; the text says why and how to fix it."""


def keys_of(content: bytes) -> Sequence[bytes]:
    """Return the keys in a file's content, in the order of the lines; blank lines are skipped.

    Raises:
        ForceKeyError: There is none, one is too short, or there are too many.
    """
    lines = [line.strip() for line in content.splitlines()]
    keys = [line for line in lines if line]
    if not keys:
        raise ForceKeyError(f"has no key; {_MAKE_ONE}")
    if len(keys) > MAX_KEYS:
        raise ForceKeyError(f"has {len(keys)} keys, {MAX_KEYS} is the most; remove old ones")
    for number, line in enumerate(lines, 1):
        if 0 < len(line) < MIN_KEY_BYTES:
            raise ForceKeyError(
                f"line {number}: the key has {len(line)} bytes, {MIN_KEY_BYTES} is the least;"
                f" {_MAKE_ONE}"
            )
    return keys


class ForceKeys:
    """The keys of a followed file.

    If the file can no longer be used, that is logged, and the keys that were read last stay valid.

    Args:
        path: The file.

    Raises:
        ForceKeyError: It cannot be used; the text names it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = FollowedFile(path)
        self._invalid = ""
        """Why the content that was read last cannot be used; "" if it can."""
        self._fault = ""
        self.keys: Sequence[bytes] = ()
        """One of them must have signed a header."""
        try:
            self._read()
        except (ForceKeyError, UnreadableFileError) as error:
            raise ForceKeyError(f"{_OPTION} {path}: {error}") from error

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.read_again)

    def read_again(self) -> None:
        """Read the file if it has changed; blocks."""
        try:
            self._read()
        except (ForceKeyError, UnreadableFileError) as error:
            if str(error) != self._fault:
                self._fault = str(error)
                _log.error(
                    "keys of forced endpoints not replaced, the former ones stay valid",
                    path=str(self._path),
                    error=self._fault,
                )
        else:
            self._fault = ""

    def _read(self) -> None:
        content = self._file.read_if_changed()
        if content is None:
            if self._invalid:
                raise ForceKeyError(self._invalid)
            return
        before, self._invalid = self.keys, ""
        try:
            self.keys = keys_of(content)
        except ForceKeyError as error:
            self._invalid = str(error)
            raise
        if before and self.keys != before:
            count = len(self.keys)
            _log.info("keys of forced endpoints replaced", path=str(self._path), keys=count)
