"""Follows the files that a connection was read from."""

from collections.abc import Sequence
from pathlib import Path

from epp.inputs import SettledChanges


class FollowedFiles:
    """Files whose new content counts once two looks in a row have found it.

    So a bundle or a kubeconfig is not read while it is being written.

    Args:
        paths: The files. Their content now, before they are read, is not new; the constructor
            blocks to look at it, as :meth:`look` does.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self.is_settled = False
        """Whether the last two looks have found the same new content."""
        self._changes = SettledChanges()
        self._changes.poll(self.paths)
        self._changes.mark_handled()

    @property
    def has_news(self) -> bool:
        """Whether the last look has found new content."""
        return self._changes.is_unhandled

    def look(self) -> None:
        """Look at the files."""
        self.is_settled = self._changes.poll(self.paths)

    def mark_read(self) -> None:
        """Mark the content that the last look has found as known; call it right after reading.

        If the files have changed since that look, their next content is new, whatever it is.
        """
        self._changes.mark_read(self.paths)
