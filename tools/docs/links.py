"""Links of the pages: those to files outside docs/ lead to a copy of the file in the web site.

This module does not import mkdocs, so that tests run without it.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

DOCS: Final = "docs"
COPIES: Final = "repository"
"""Folder of the site with the copies."""
RENAMED: Final = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Files of the repository's root that are pages, and their paths in the site."""

_LINK_OR_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`|\]\((?P<target>[^)\s]+)\)", re.S)
_FENCE: Final = "`````"
_LANGUAGES: Final = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".md": "markdown"}


def local_targets(text: str) -> Iterator[str]:
    """Yield the target of each link of a page to a file, without the anchor."""
    for found in _LINK_OR_CODE.finditer(text):
        path = (found["target"] or "#").partition("#")[0]
        if path and "://" not in path:
            yield path


def in_repository(source: str, target: str) -> str:
    """Return a link's target as a path in the repository.

    Args:
        source: The page's file, as a path in the repository.
        target: The target as written in the page.
    """
    return normpath(f"{PurePosixPath(source).parent}/{target}")


def in_site(path: str, is_directory: Callable[[str], bool]) -> str:
    """Return the page of the site for a file or directory of the repository."""
    if path in RENAMED:
        return RENAMED[path]
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return f"{COPIES}/{path}{'/index' if is_directory(path) else ''}.md"


def with_site_links(text: str, source: str, page: str, is_directory: Callable[[str], bool]) -> str:
    """Return a page's text whose links lead to pages of the site.

    Args:
        text: Markdown.
        source: The page's file, as a path in the repository.
        page: Its path in the site.
        is_directory: Whether a path in the repository is a directory.
    """

    def replaced(found: re.Match[str]) -> str:
        path, mark, anchor = (found["target"] or "#").partition("#")
        if not path or "://" in path:
            return found[0]
        leads_to = in_site(in_repository(source, path), is_directory)
        return f"]({relpath(leads_to, PurePosixPath(page).parent)}{mark}{anchor})"

    return _LINK_OR_CODE.sub(replaced, text)


def copied(root: Path, texts: dict[str, str]) -> dict[str, str]:
    """Return pages for the files and directories outside docs/ that the pages link to.

    Args:
        root: The repository.
        texts: The text of each page by its path in the repository.

    Returns:
        Markdown by the path in the site: a file as a block of code, a directory as a list of its
        files, which have pages, too.

    Raises:
        FileNotFoundError: A page links to a file that does not exist.
    """
    pages: dict[str, str] = {}
    waiting = [
        in_repository(page, target)
        for page, text in texts.items()
        for target in local_targets(text)
    ]
    while waiting:
        path = waiting.pop()
        where = root / path
        page = in_site(path, lambda each: (root / each).is_dir())
        if not page.startswith(f"{COPIES}/") or page in pages:
            continue
        if where.is_dir():
            names = sorted(
                each.name for each in where.iterdir() if not each.name.startswith((".", "__"))
            )
            waiting += [f"{path}/{name}" for name in names]
            pages[page] = _directory_page(where, path, names)
        else:
            text = where.read_text(encoding="utf-8").rstrip("\n")
            language = _LANGUAGES.get(where.suffix, "text")
            pages[page] = f"# {path}\n\n{_FENCE}{language}\n{text}\n{_FENCE}\n"
    return pages


def _directory_page(where: Path, path: str, names: list[str]) -> str:
    items = [
        f"- [{name}]({name}{'/index' if (where / name).is_dir() else ''}.md)" for name in names
    ]
    return "\n".join([f"# {path}/", "", *items, ""])
