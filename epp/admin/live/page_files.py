"""The files of the live page, as responses of the metrics port.

They contain nothing about the process, so they are served without a token: a browser sends none
when it opens a page. The page asks for the token and sends it with each request for data.
"""

from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from epp.observability.http_connection import Response

PATH: Final = "/ui/"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = (
    # No inline code and no other origins, because others choose the names of models and endpoints.
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
    ("Cache-Control", "no-cache"),
)


@cache
def page_files() -> Mapping[str, Response]:
    """Return the responses by path; ``/`` and ``/ui`` redirect to the page."""
    found = {}
    for each in files("epp.admin").joinpath("page").iterdir():
        kind = _TYPES.get(each.name[each.name.rfind(".") :])
        if kind is not None:
            found[PATH + each.name] = Response(HTTPStatus.OK, kind, each.read_bytes(), _HEADERS)
    found[PATH] = found.pop(f"{PATH}index.html")
    # Relative, so that it works behind a proxy that adds a prefix.
    to_page = Response(HTTPStatus.FOUND, "text/plain", b"", (("Location", "ui/"),))
    return {**found, "/": to_page, PATH.rstrip("/"): to_page}
