"""The files of TLS while they change: who the server is, and who vouches for its clients.

New connections get what the files say now, old ones keep what they began with. A renewed pair is
two files, so one look may see the half of it: a change counts when two looks in a row have seen the
same. What cannot be used is told of once, and the last good ones stay.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from epp.transport.certificate import Certificate, load_authorities, load_certificate
from epp.transport.errors import TlsError
from epp.transport.tls import TlsSettings

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a handshake needs of files."""

    certificate: Certificate
    """The server's own."""
    client_authorities: str = ""
    """Certificates in PEM; a client has to show one that they issued. Empty: it shows none."""


def load_credentials(settings: TlsSettings, *, own: Certificate | None = None) -> Credentials:
    """Read what ``settings`` name; blocks.

    Args:
        settings: Name the files.
        own: The self-signed certificate to go on with; None makes one if there is none to read.

    Raises:
        TlsError: A file is missing, unreadable, or not what it should be.
    """
    directory, authorities = settings.certificate_directory, settings.client_authorities
    return Credentials(
        certificate=own if own and directory is None else load_certificate(directory),
        client_authorities="" if authorities is None else load_authorities(authorities),
    )


class CredentialsFollower:
    """Follows the files that some settings name.

    Args:
        settings: Name the files.
        current: What they said when they were read first.
        use: Takes new ones into use, called in a thread; may raise ``TlsError``.
        poll_seconds: Time between two looks.
    """

    def __init__(
        self,
        settings: TlsSettings,
        current: Credentials,
        use: Callable[[Credentials], None],
        *,
        poll_seconds: float = 1.0,
    ) -> None:
        self.current = current
        """Those in use."""
        self.reloads = {"success": 0, "failure": 0}
        """How often the files were found changed, by what came of it."""
        self._settings = settings
        self._use = use
        self._poll_seconds = poll_seconds
        self._last_fault = ""

    async def run(self) -> None:
        """Follow the files until cancelled."""
        # The first settled look is acted on: a file may have changed since it was read.
        acted_on: list[bytes] | None = None
        seen: list[bytes] | None = None
        while True:
            now = await asyncio.to_thread(self._look)
            if now == seen and now != acted_on:
                acted_on = now
                await asyncio.to_thread(self._renew)
            seen = now
            await asyncio.sleep(self._poll_seconds)

    def _look(self) -> list[bytes]:
        """Return the content of each file, or why it cannot be read.

        The content, not the times: an edit in place, a rename and the link swap of a mounted Secret
        all show.
        """
        looks = []
        for path in self._settings.files:
            try:
                looks.append(path.read_bytes())
            except OSError as error:
                looks.append(str(error).encode())
        return looks

    def _renew(self) -> None:
        try:
            found = load_credentials(self._settings, own=self.current.certificate)
            if found != self.current:
                self._use(found)
        except TlsError as error:
            if str(error) != self._last_fault:
                self._last_fault = str(error)
                self.reloads["failure"] += 1
                log.error("TLS files were refused, the last good ones stay", problem=str(error))  # noqa: TRY400 - the user's fault, no traceback
            return
        if found != self.current:
            self.current = found
            self.reloads["success"] += 1
            log.info("TLS files were reloaded", source=found.certificate.source)
        elif self._last_fault:
            log.info("TLS files are those in use again", source=found.certificate.source)
        self._last_fault = ""
