"""Checks of the documentation site without mkdocs (`make docs`)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.docs.links import copied, in_site, local_targets, with_site_links

ROOT = Path(__file__).parents[2]
NOT_PAGES = {"index.md", "changelog.md"}
"""Made from files outside docs/."""


class _Loader(yaml.SafeLoader):
    """Reads the tag of a Python object as a mapping of its arguments; mkdocs makes the object."""


_LOADER_TAG = "tag:yaml.org,2002:python/object/apply:"
_Loader.add_multi_constructor(_LOADER_TAG, lambda loader, _, node: loader.construct_mapping(node))
CONFIG: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)


def pages_of(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(each)


def is_directory(path: str) -> bool:
    return path == "deploy/config"


def test_the_navigation_has_every_page_once_apart_from_those_of_plugins() -> None:
    files = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    listed = list(pages_of(CONFIG["nav"]))
    assert sorted(listed) == sorted(
        NOT_PAGES | {each for each in files if not re.match(r"plugins/(?!README)", each)}
    )


def test_no_setting_of_the_site_names_another_host() -> None:
    assert CONFIG["theme"]["font"] is False
    assert "://" not in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize(
    ("source", "page", "link", "expected"),
    [
        ("docs/a.md", "a.md", "b.md#c", "b.md#c"),
        ("docs/a.md", "a.md", "#c", "#c"),
        ("docs/a.md", "a.md", "https://x.example/y.md", "https://x.example/y.md"),
        ("docs/a.md", "a.md", "../README.md#try-it", "index.md#try-it"),
        ("docs/plugins/a.md", "plugins/a.md", "../b.md", "../b.md"),
        ("docs/a.md", "a.md", "../deploy/x.yaml", "repository/deploy/x.yaml.md"),
        ("docs/design/a.md", "design/a.md", "../../x.py", "../repository/x.py.md"),
        ("docs/a.md", "a.md", "../deploy/config/", "repository/deploy/config/index.md"),
        ("README.md", "index.md", "docs/plugins/README.md", "plugins/README.md"),
        ("README.md", "index.md", "CHANGELOG.md", "changelog.md"),
    ],
)
def test_a_link_leads_to_the_page_of_the_site(
    source: str, page: str, link: str, expected: str
) -> None:
    text = f"[text]({link}) and `[code]({link})`\n```\n[block]({link})\n```\n"
    found = with_site_links(text, source, page, is_directory)
    assert found == f"[text]({expected}) and `[code]({link})`\n```\n[block]({link})\n```\n"


def test_targets_of_links_are_those_to_files_and_without_anchors() -> None:
    text = "[a](b.md#c) [d](#e) [f](https://x.example) `[g](h.md)` [i](j/)"
    assert list(local_targets(text)) == ["b.md", "j/"]


def test_linked_files_and_directories_become_pages(tmp_path: Path) -> None:
    (tmp_path / "deploy" / "sub").mkdir(parents=True)
    (tmp_path / "deploy" / "a.yaml").write_text("a: 1\n")
    (tmp_path / "deploy" / "sub" / "b.sh").write_text("true\n")
    pages = copied(tmp_path, {"docs/x.md": "[d](../deploy/) [page](y.md)"})
    assert pages == {
        "repository/deploy/index.md": "# deploy/\n\n- [a.yaml](a.yaml.md)\n- [sub](sub/index.md)\n",
        "repository/deploy/a.yaml.md": "# deploy/a.yaml\n\n`````yaml\na: 1\n`````\n",
        "repository/deploy/sub/index.md": "# deploy/sub/\n\n- [b.sh](b.sh.md)\n",
        "repository/deploy/sub/b.sh.md": "# deploy/sub/b.sh\n\n`````sh\ntrue\n`````\n",
    }


def test_a_link_to_what_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        copied(tmp_path, {"docs/x.md": "[d](../gone.yaml)"})


def test_the_page_of_a_file_of_the_repository_is_under_its_path() -> None:
    assert in_site("deploy/config", is_directory) == "repository/deploy/config/index.md"
    assert in_site("deploy/x.yaml", is_directory) == "repository/deploy/x.yaml.md"
