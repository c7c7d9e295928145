"""Whether any of some files has another content than before.

The content itself is looked at, not the times: an edit in place, an atomic rename and the link swap
of a mounted ConfigMap all show, and two edits within one tick of the file system's clock do too.
The files are small, so two looks a second cost less than a scrape.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path


def fingerprint(paths: Iterable[Path]) -> str:
    """Return what changes with the content of the files, or with why one cannot be read; blocks."""
    digest = sha256()
    for path in sorted(paths):
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            content = f"cannot be read: {error}".encode()
        digest.update(f"{path} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
