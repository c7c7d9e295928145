"""Detect changes in a set of files by hashing their content.

Hashing detects edits in place, atomic renames, the link swap of a mounted ConfigMap, and two edits
within one tick of the file system's clock. The files are small: two polls a second cost less than a
scrape.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a digest over the files' content, or their read errors; blocks."""
    digest = sha256()
    for path in sorted(paths):
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
            content = f"cannot be read: {error}".encode()
        digest.update(f"{path} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()
