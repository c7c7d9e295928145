"""Hooks of mkdocs: pages of files outside docs/, the list of plugins, and a check of the result."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt
from mkdocs.exceptions import BuildError
from mkdocs.structure.files import File

from tools.docs.links import COPIES, DOCS, RENAMED, copied, with_site_links

ROOT: Final = Path(__file__).parents[2]
_ASSETS: Final = Path(__file__).parent / "assets"
_PLUGINS: Final = "plugins/README.md"
_GITHUB: Final = MarkdownIt("gfm-like", {"linkify": False})


def on_config(config: Any) -> Any:
    """Put the page of each plugin into the navigation, under its role."""
    index = (ROOT / DOCS / _PLUGINS).read_text(encoding="utf-8")
    for section in config.nav:
        for entries in section.values():
            if _PLUGINS in entries:
                entries[1:1] = _plugin_pages(index)
    return config


def _plugin_pages(index: str) -> list[dict[str, list[dict[str, str]]]]:
    """Return the navigation's entries for the index of the plugin reference."""
    roles = re.split(r"^## ", index, flags=re.M)[1:]
    return [
        {
            role.partition("\n")[0]: [
                {name: f"plugins/{page}"}
                for name, page in re.findall(r"^\| \[`([^`]+)`\]\(([^)]+)\)", role, re.M)
            ]
        }
        for role in roles
    ]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages whose files are outside docs/."""
    sources = {str(each.relative_to(ROOT)) for each in (ROOT / DOCS).rglob("*.md")} | RENAMED.keys()
    texts = {each: (ROOT / each).read_text(encoding="utf-8") for each in sources}
    pages = {page: texts[source] for source, page in RENAMED.items()} | copied(ROOT, texts)
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    for asset in _ASSETS.iterdir():
        files.append(File.generated(config, f"assets/{asset.name}", abs_src_path=str(asset)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Turn links to files into links to pages."""
    path = page.file.src_uri
    if path.startswith(f"{COPIES}/"):
        return markdown
    sources = {there: source for source, there in RENAMED.items()}
    source = sources.get(path, f"{DOCS}/{path}")
    return with_site_links(markdown, source, path, lambda each: (ROOT / each).is_dir())


def on_page_content(html: str, page: Any, **_: object) -> str:
    """Fix details that GitHub renders better; fail if a page has other blocks than on GitHub.

    Python-Markdown differs from GitHub in lists: the continuation of an item needs four spaces.
    """
    if not page.file.src_uri.startswith(f"{COPIES}/"):
        here, there = _blocks(html), _blocks(_GITHUB.render(page.markdown))
        if here != there:
            raise BuildError(f"{page.file.src_uri}: blocks {dict(here)}, on GitHub {dict(there)}")
    # A flag in a narrow column is not broken behind its dashes.
    html = re.sub(r"<code>(?=-[^ <]{1,40}</code>)", '<code class="flag">', html)
    # Code in tables needs a backslash before a bar, which GitHub does not show.
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.S)


def _blocks(html: str) -> Counter[str]:
    return Counter(re.findall(r"<(h[1-6]|ul|ol|li|pre|table|tr)\b", html))


def on_post_build(config: Any) -> None:
    """Fail if a page loads anything from another site."""
    faults = [
        f"{page.relative_to(config.site_dir)} loads {each}"
        for page in sorted(Path(config.site_dir).rglob("*.html"))
        for each in _loaded_from_elsewhere(page.read_text(encoding="utf-8"))
    ]
    if faults:
        raise BuildError("\n".join(faults))


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.urls += [
            values[each] for each in ("src", "srcset", "poster", "data") if each in values
        ]
        if tag == "link" and values.get("rel") not in {"next", "prev", "canonical"}:
            self.urls.append(values.get("href", ""))


def _loaded_from_elsewhere(html: str) -> list[str]:
    """Return the addresses from which a page loads files other than the site's own."""
    parser = _Loads()
    parser.feed(html)
    return [each for each in parser.urls if re.match(r"(?:\w+:)?//", each)]
