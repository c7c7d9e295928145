"""TLS files: loads them, and reloads them when they change.

New connections use the current files; open ones keep what they started with. A renewed certificate
consists of two files, so a poll may see only one of them replaced: a change is used when two polls
in a row have read the same content. Invalid files are logged once, and the last valid ones stay in
use.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from epp.inputs import SettledChanges
from epp.transport.certificate import Certificate, load_authorities, load_certificate
from epp.transport.errors import TlsError
from epp.transport.tls import TlsSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Contents of the files that a handshake needs."""

    certificate: Certificate
    """The server's certificate."""
    client_authorities: str = ""
    """Certificates of authorities, in PEM; clients must present a certificate issued by one.
    Empty: clients present none."""


def load_credentials(settings: TlsSettings, *, own: Certificate | None = None) -> Credentials:
    """Read the files named by ``settings``; blocks.

    Args:
        settings: Names the files.
        own: Self-signed certificate to use if ``settings`` names no directory; None generates one.

    Raises:
        TlsError: A file is missing, unreadable or invalid.
    """
    directory, authorities = settings.certificate_directory, settings.client_authorities
    return Credentials(
        certificate=own if own and directory is None else load_certificate(directory),
        client_authorities="" if authorities is None else load_authorities(authorities),
    )


class CredentialsFollower:
    """Reloads TLS files when they change.

    Args:
        settings: Names the files.
        current: The credentials loaded at start-up.
        use: Called in a thread with new credentials; may raise ``TlsError``.
        poll_seconds: Polling interval.
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
        """The credentials in use."""
        self.reloads = {"success": 0, "failure": 0}
        """Reloads of changed files by result."""
        self._settings = settings
        self._use = use
        self._poll_seconds = poll_seconds
        self._changes = SettledChanges()
        self._last_fault = ""

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await asyncio.to_thread(self._reload_if_changed)
            await asyncio.sleep(self._poll_seconds)

    def _reload_if_changed(self) -> None:
        if self._changes.poll(self._settings.files):
            self._reload()

    def _reload(self) -> None:
        try:
            found = self._load()
            if found != self.current:
                self._use(found)
        except TlsError as error:
            if str(error) != self._last_fault:
                self._last_fault = str(error)
                self.reloads["failure"] += 1
                log.error(  # noqa: TRY400 - the user's fault, no traceback
                    "TLS files were rejected, the last valid ones stay in use", problem=str(error)
                )
            return
        if found != self.current:
            self.current = found
            self.reloads["success"] += 1
            log.info("TLS files were reloaded", source=found.certificate.source)
        elif self._last_fault:
            log.info("TLS files match those in use again", source=found.certificate.source)
        self._last_fault = ""

    def _load(self) -> Credentials:
        try:
            return load_credentials(self._settings, own=self.current.certificate)
        finally:
            self._changes.mark_read(self._settings.files)
