"""Commands and YAML in the blocks of the documents."""

from pathlib import Path

import pytest
import yaml
from doc_commands import ROOT, blocks_of, check_options, commands_in

PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if page.name != "cli.md"]
COMMANDS = [
    pytest.param(line, id=f"{page.name}: {line[:40]}")
    for page in PAGES
    for kind, text in blocks_of(page)
    if kind in {"", "sh"}
    for line in commands_in(text)
]
YAML = [
    pytest.param(text, id=f"{page.name}: {text[:30]!r}")
    for page in PAGES
    for kind, text in blocks_of(page)
    if kind == "yaml"
]


def test_commands_and_yaml_are_found() -> None:
    assert len(COMMANDS) >= 30
    assert len(YAML) >= 20


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_the_options_that_it_is_given(line: str) -> None:
    check_options(line)


@pytest.mark.parametrize("text", YAML)
def test_a_block_of_yaml_can_be_read(text: str) -> None:
    assert all(document is not None for document in yaml.safe_load_all(text))


def test_blocks_within_lists_and_continued_lines_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("1. Do:\n\n    ```sh\n    epp load \\\n      --json   # all\n    ```\n")
    assert blocks_of(page) == [("sh", "epp load \\\n  --json   # all\n")]
    assert [line.split() for line in commands_in(blocks_of(page)[0][1])] == [["load", "--json"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("load --jsonn", "[Nn]o such option"),
        ("lod", "there is no command 'lod'"),
        ("plugins shw x", "there is no command 'shw'"),
    ],
)
def test_a_command_or_option_that_does_not_exist_is_noticed(line: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        check_options(line)
