"""The frame of a page: one file that loads nothing, runs nothing and needs no network."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from epp.lab.results.page.markup import Markup, element, joined


def document(title: str, headline: str, remarks: Sequence[str], parts: Sequence[Markup]) -> str:
    """Return a whole page.

    Its content security policy allows its own style and nothing else, so that even an error in
    this package could not make the browser run or load anything.

    Args:
        title: What was run.
        headline: The result in one sentence.
        remarks: What a reader must know before trusting the figures.
        parts: Sections.
    """
    style = files("epp.lab.results.page").joinpath("style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; style-src 'sha256-{digest}'",
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        element(
            "main",
            element("header", element("p", title, class_="soft"), element("h1", headline)),
            element("ul", *(element("li", each) for each in remarks), class_="remarks")
            if remarks
            else "",
            *parts,
        ),
    )
    html = element("html", head, body, lang="en")
    return joined([Markup("<!doctype html>\n"), html, Markup("\n")])
