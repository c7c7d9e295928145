"""The files that a connection is made of, and whether they have changed."""

from collections.abc import Sequence
from pathlib import Path

from epp.inputs import SettledChanges


class FollowedFiles:
    """Files whose new content counts once two looks in a row have found it.

    So a bundle or a kubeconfig that is being written is not read.

    Args:
        paths: The files. What they contain now, before they are read, is not new; to find that out
            blocks, as :meth:`look` does.
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
        """Take what the last look has found as known; call it right after reading the files.

        If they have changed since that look, what they contain next is new, whatever it is.
        """
        self._changes.mark_read(self.paths)
