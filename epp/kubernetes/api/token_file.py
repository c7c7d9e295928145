"""Authentication by a token in a file that is replaced from time to time.

The class of lightkube reads the file in the event loop, and rereads it only after the server has
rejected a token.
"""

from asyncio import to_thread
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import httpx2

_MAX_AGE_SECONDS: Final = 60.0
"""The kubelet renews a token long before it expires."""

_UNAUTHORIZED: Final = 401


class TokenFileAuth(httpx2.Auth):
    """Sends the token in a file that is replaced from time to time.

    The file is read again once a minute, and at once if the server rejects the token. While it
    cannot be read, the last token stays in use.

    Args:
        path: The file; it is read now, which blocks.
        clock: Monotonic clock in seconds.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._token = _read_token(path)
        self._read_at = clock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Add the token; repeat the call with a new one if the server rejects this one."""
        if self._clock() - self._read_at >= _MAX_AGE_SECONDS:
            await self._read()
        sent = self._token
        request.headers["authorization"] = f"Bearer {sent}"
        response = yield request
        if response.status_code != _UNAUTHORIZED:
            return
        await self._read()
        if self._token != sent:
            request.headers["authorization"] = f"Bearer {self._token}"
            yield request

    async def _read(self) -> None:
        try:
            self._token = await to_thread(_read_token, self._path)
        except OSError:
            return  # the next call tries again
        self._read_at = self._clock()


def _read_token(path: Path) -> str:
    return path.read_text("utf-8").strip()
