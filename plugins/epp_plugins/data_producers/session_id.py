"""``session-id-producer``: takes the id of a request's session out of a header or a cookie.

Exactly one of ``headerName`` and ``cookieName`` is to be set, so it is never made by default. A
header is taken as it is, upper and lower case of its name being the same; of the header ``cookie``
the first cookie of that very name. Blanks around the id are no part of it. A request without one
has no session, and neither has one whose id is longer than 256 characters or has control characters
in it. A cookie after the first 256 of a request is not found.

Writes: ``SESSION_ID`` (``SessionIDDataKey/session-id-producer``), and the same under the producer's
        own name; nothing for a request without a session. Of several producers the one that is
        called ``session-id-producer`` wins ``SESSION_ID``, else the first that has an id.
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

_MOST_COOKIES: Final = 256
"""Of one request that are looked at, 0.2 us each; browsers send 180 at most."""


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
    """Takes the session id out of a header or a cookie of the request."""

    type: ClassVar[str] = "session-id-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (SESSION_ID,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name
        self._header = params.header_name.strip().lower()
        self._cookie = params.cookie_name.strip()
        self._own: StateKey[str] = StateKey(f"SessionIDDataKey/{name}")
        # An instance's own: its name is in a key.
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
    """Return the value of the cookie ``name`` (RFC 6265 §4.2.1); "" if there is none."""
    for pair in header.split(";", _MOST_COOKIES)[:_MOST_COOKIES]:
        key, _, value = pair.partition("=")
        if key.strip() == name:
            return value
    return ""
