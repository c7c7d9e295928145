"""The file with the keys of forced endpoints: its faults, and its changes."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from epp.request_control.force_keys import ForceKeyError, ForceKeys, keys_of

FIRST, SECOND = b"1" * 32, b"2" * 40


def test_each_line_is_a_key() -> None:
    assert keys_of(FIRST + b"\r\n\n  " + SECOND + b" \n") == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "has no key; make one with `openssl rand -hex 32`", id="empty"),
        pytest.param(b" \n\n", "has no key", id="blank"),
        pytest.param(
            FIRST + b"\n\nshort\n", "line 3: the key has 5 bytes, 32 is the least", id="short"
        ),
        pytest.param(b"\n".join([FIRST] * 9), "has 9 keys, 8 is the most", id="many"),
    ],
)
def test_a_useless_file_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(ForceKeyError) as caught:
        ForceKeys(path)
    assert str(caught.value).startswith(f"--force-endpoint-key-file {path}: ")
    assert why in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForceKeyError, match="cannot be read: no such file"):
        ForceKeys(tmp_path / "keys")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(FIRST)
    followed = ForceKeys(path)
    path.write_bytes(FIRST + b"\n" + SECOND)
    with capture_logs() as logs:
        followed.read_again()
        followed.read_again()
    assert followed.keys == [FIRST, SECOND]
    assert [(line["event"], line["keys"]) for line in logs] == [
        ("keys of forced endpoints replaced", 2)
    ]


def test_a_file_that_breaks_leaves_the_keys_and_is_logged_once(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(FIRST)
    followed = ForceKeys(path)
    with capture_logs() as logs:
        for content in (b"short", b"short", None, None, SECOND):
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(content)
            before = followed.keys
            followed.read_again()
            followed.read_again()
            assert followed.keys == (before if content != SECOND else [SECOND])
    assert [(line["log_level"], line.get("error", "")[:14]) for line in logs] == [
        ("error", "line 1: the ke"),
        ("error", "cannot be read"),
        ("info", ""),
    ]
