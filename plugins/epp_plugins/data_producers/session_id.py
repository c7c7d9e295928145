"""``session-id-producer``: reads the session id of a request from a header or a cookie.

Set exactly one of ``headerName`` and ``cookieName``; because one is required, the producer is never
added by default. Header names are case-insensitive; cookie names are not. If a cookie occurs more
than once, the first is used. Only the first 256 cookies of a request are read. Spaces around the id
are removed. An id of more than 256 characters or with control characters is ignored.

Writes: ``SESSION_ID`` (``SessionIDDataKey/session-id-producer``), and the same key with the name of
        the producer; nothing for a request without a session. With several producers,
        ``SESSION_ID`` is written by the one named ``session-id-producer``, otherwise by the first
        that finds an id.
Example::

    plugins:
      - type: session-id-producer
        parameters: {headerName: x-session-id}
"""

from typing import Any, ClassVar, Final

import msgspec

from epp.request_control.plugins import DataProducer
from epp.scheduling import CycleState, LLMRequest, StateKey
from epp_plugins.session_ids import usable_id
from epp_plugins.state_keys import SESSION_ID

_MAX_COOKIES: Final = 256
"""Maximum cookies of one request that are read, 0.2 us each; browsers send at most 180."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``session-id-producer``."""

    header_name: str = ""
    """Request header with the id."""
    cookie_name: str = ""
    """Cookie with the id."""

    def __post_init__(self) -> None:
        if bool(self.header_name.strip()) == bool(self.cookie_name.strip()):
            raise ValueError(
                "set exactly one of `headerName` and `cookieName`, such as `headerName:"
                " x-session-id`"
            )


class SessionIdProducer(DataProducer):
    """Reads the session id from a header or a cookie of the request."""

    type: ClassVar[str] = "session-id-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (SESSION_ID,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._header = params.header_name.strip().lower()
        self._cookie = params.cookie_name.strip()
        self._own: StateKey[str] = StateKey(f"SessionIDDataKey/{name}")
        # Set per instance, unlike the keys of most plugins: a key contains its name.
        self.writes = tuple(dict.fromkeys((SESSION_ID, self._own)))  # type: ignore[misc]

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        headers = request.headers
        session = usable_id(
            headers.get(self._header)
            if self._header
            else _cookie(headers.get("cookie", ""), self._cookie)
        )
        if not session:
            return
        state.write(self._own, session)
        if state.read(SESSION_ID) is None:
            state.write(SESSION_ID, session)


def _cookie(header: str, name: str) -> str:
    """Return the value of the cookie ``name`` (RFC 6265 §4.2.1), or ""."""
    for pair in header.split(";", _MAX_COOKIES)[:_MAX_COOKIES]:
        key, _, value = pair.partition("=")
        if key.strip() == name:
            return value
    return ""
