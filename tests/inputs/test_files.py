"""Changes of files are detected by metadata, or by content once it has settled."""

import os
from pathlib import Path

import pytest

from epp.inputs import FollowedFile, SettledChanges, UnreadableFileError


def written(path: Path, content: bytes, modified_ns: int) -> None:
    """Write in place, with a modification time of our choice."""
    path.write_bytes(content)
    os.utime(path, ns=(modified_ns, modified_ns))


def test_a_file_is_read_until_its_metadata_is_the_same_twice(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path, b"one", 1)
    file = FollowedFile(path)
    assert [file.read_if_changed() for _ in range(4)] == [b"one", b"one", None, None]
    written(path, b"three", 2)
    assert file.read_if_changed() == b"three"
    # Same size and time as before: found because a changed file is read once more.
    written(path, b"seven", 2)
    assert [file.read_if_changed() for _ in range(2)] == [b"seven", None]


def test_a_file_is_read_again_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    written(path, b"one", 1)
    file = FollowedFile(path)
    for _ in range(2):
        file.read_if_changed()
    assert file.read_if_changed() is None
    path.rename(tmp_path / "away")
    with pytest.raises(UnreadableFileError, match="cannot be read: no such file"):
        file.read_if_changed()
    (tmp_path / "away").rename(path)
    assert file.read_if_changed() == b"one"


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"." * (1024 * 1024 + 1))
    with pytest.raises(UnreadableFileError, match="larger than the limit of 1 MiB"):
        FollowedFile(path).read_if_changed()


def test_a_change_counts_once_it_has_settled(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    changes = SettledChanges()
    assert [changes.poll([one, two]) for _ in range(3)] == [False, True, True]
    changes.mark_handled()
    assert changes.poll([two, one]) is False
    two.write_bytes(b"2")
    assert changes.poll([one, two]) is False
    two.write_bytes(b"2, complete")
    assert [changes.poll([one, two]) for _ in range(2)] == [False, True]


def test_a_change_that_is_undone_before_it_settles_is_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    changes = SettledChanges()
    for _ in range(2):
        changes.poll([path])
    changes.mark_handled()
    path.write_bytes(b"2")
    assert changes.poll([path]) is False
    path.write_bytes(b"1")
    assert [changes.poll([path]) for _ in range(2)] == [False, False]


def test_a_change_while_the_files_are_read_counts_though_it_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    changes = SettledChanges()
    for _ in range(2):
        changes.poll([path])
    path.write_bytes(b"2")
    changes.mark_read([path])
    path.write_bytes(b"1")
    assert changes.poll([path]) is True
    changes.mark_read([path])
    assert [changes.poll([path]) for _ in range(2)] == [False, False]
