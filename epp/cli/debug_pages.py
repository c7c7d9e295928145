"""Client for the debug pages of a running endpoint picker."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from epp.inputs import why_unreadable

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
NO_QUERY: Final[Mapping[str, str]] = MappingProxyType({})


_ACCESS_HINTS: Final[Mapping[int, str]] = {
    401: "give a valid token with --page-token-file FILE, as docs/kubernetes.md says under"
    " 'The metrics port'",
    403: "a ClusterRole must let that account `get` the nonResourceURL /debug/*",
}
"""Hints for ports that check bearer tokens, by HTTP status."""


class DebugPageError(Exception):
    """A page could not be fetched, or a call failed; the text gives the URL and the reason.

    Attributes:
        status: HTTP status that the endpoint picker returned; 0 for other errors.
    """

    def __init__(self, text: str, *, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class NoSuchPageError(DebugPageError):
    """The endpoint picker does not have the page."""


class _ErrorDocument(msgspec.Struct):
    """The document of an error response."""

    error: str
    pages: list[str] | None = None


class DebugClient:
    """Fetches debug pages from the metrics port."""

    def __init__(
        self,
        admin: str,
        *,
        pool: str = "",
        ca_file: str = "",
        cert_file: str = "",
        token_file: Path | None = None,
        option: str = "--admin",
    ) -> None:
        """Parse the address of the metrics port, and load certificates.

        Args:
            admin: The address.
            pool: Name of the pool whose pages are fetched, if several are served; "" otherwise.
            ca_file: Certificate authorities of the server, PEM; "" for well-known ones.
            cert_file: Certificate and key of the client, PEM; "" for none.
            token_file: File with the bearer token for pages; None for none.
            option: Option of the address, for messages; the options of certificates begin with
                its name.

        Raises:
            PageError: The address or a certificate is invalid, or the token cannot be read.
        """
        self._pool = pool
        self._headers: dict[str, str] = {}
        if token_file is not None:
            try:
                self._headers["authorization"] = f"Bearer {token_file.read_text().strip()}"
            except (OSError, UnicodeDecodeError) as error:
                raise DebugPageError(f"--page-token-file: {error}") from None
        base = _parsed(admin)
        if base is None:
            raise DebugPageError(
                f"{option}: give a URL such as http://127.0.0.1:9090, where /metrics is served"
            )
        self._base = base.copy_with(query=None, fragment=None)
        self.shown = str(self._base.copy_with(userinfo=b"")).rstrip("/")
        """The address without user and password, for messages."""
        is_https = self._base.scheme == "https"
        self._verify = _tls_context(ca_file, cert_file, option) if is_https else False

    def get(self, page: str, query: Mapping[str, str] = NO_QUERY) -> bytes:
        """Return the page at this path below ``/debug/``; blocks.

        Args:
            page: The path, percent-encoded.
            query: Parameters of the query.

        Raises:
            PageError: The page could not be fetched.
        """
        try:
            return self._call("GET", page, query, self._headers)
        except DebugPageError as error:
            if (hint := _ACCESS_HINTS.get(error.status)) is None:
                raise
            raise DebugPageError(f"{error}; {hint}", status=error.status) from None

    def events(self, page: str) -> Iterator[tuple[str, bytes]]:
        """Yield the events of the feed at this path as kind and JSON; blocks.

        Raises:
            PageError: The feed could not be opened, or has broken off.
        """
        url, shown = self._target(page)
        try:
            with (
                httpx.Client(
                    timeout=TIMEOUT_SECONDS, trust_env=False, verify=self._verify
                ) as client,
                client.stream("GET", url, headers=self._headers) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise self._error(response, shown)
                kind = ""
                for line in response.iter_lines():
                    if line.startswith("event: "):
                        kind = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        yield kind, line.removeprefix("data: ").encode()
        except httpx.HTTPError as error:
            raise _unreachable(shown, error) from None
        raise DebugPageError(f"{shown}: the endpoint picker has closed the connection")

    def metrics(self) -> httpx.Response:
        """Return the response with the metrics page; blocks.

        Raises:
            PageError: The page could not be fetched.
        """
        raw_path = self._base.raw_path.rstrip(b"/") + b"/metrics"
        return self._sent(
            "GET",
            self._base.copy_with(raw_path=raw_path),
            f"{self.shown}/metrics",
            {},
            self._headers,
        )

    def post(self, call: str, parameters: Mapping[str, str], token: str) -> bytes:
        """POST to this path below ``/debug/``, and return the body of the response; blocks.

        Raises:
            PageError: The call failed.
        """
        return self._call("POST", call, parameters, {"authorization": f"Bearer {token}"})

    def _call(
        self, method: str, page: str, parameters: Mapping[str, str], headers: Mapping[str, str]
    ) -> bytes:
        target, shown = self._target(page)
        return self._sent(method, target, shown, parameters, headers).content

    def _sent(
        self,
        method: str,
        target: httpx.URL,
        shown: str,
        parameters: Mapping[str, str],
        headers: Mapping[str, str],
    ) -> httpx.Response:
        try:
            with httpx.Client(
                timeout=TIMEOUT_SECONDS, trust_env=False, verify=self._verify
            ) as client:
                response = client.request(
                    method, target, params=parameters or None, headers=headers
                )
        except httpx.HTTPError as error:
            raise _unreachable(shown, error) from None
        if response.status_code == httpx.codes.OK:
            return response
        raise self._error(response, shown)

    def _target(self, page: str) -> tuple[httpx.URL, str]:
        """Return the URL of a page, and its form for messages."""
        path = f"/debug/pools/{quote(self._pool)}/{page}" if self._pool else f"/debug/{page}"
        raw_path = self._base.raw_path.rstrip(b"/") + path.encode()
        return self._base.copy_with(raw_path=raw_path), self.shown + path

    def _error(self, response: httpx.Response, shown: str) -> DebugPageError:
        """Return the error of a response that is not the page."""
        try:
            document = msgspec.json.decode(response.content, type=_ErrorDocument)
        except msgspec.MsgspecError:
            return DebugPageError(
                f"{shown}: answered {response.status_code}; is this the --metrics-port of an"
                " endpoint picker, in a version that has this page?"
            )
        if document.pages is None:
            status = response.status_code
            return DebugPageError(
                f"{shown}: answered {status}: {plain(document.error)}", status=status
            )
        if "/metrics" in document.pages:
            return DebugPageError(
                f"{shown}: {plain(document.error)}; an endpoint picker has its debug pages at"
                " /debug/ of its --metrics-port"
            )
        pools = _pools(document.pages)
        if pools and self._pool not in pools:
            but = f", but not {plain(self._pool)}" if self._pool else ""
            return DebugPageError(
                f"{self.shown}: this endpoint picker serves several pools{but}: give --pool with"
                f" one of {', '.join(map(plain, pools))}"
            )
        if self._pool and not pools:
            return DebugPageError(
                f"{self.shown}: this endpoint picker serves one pool: leave out --pool"
            )
        return NoSuchPageError(f"{shown}: {plain(document.error)}")


def _unreachable(shown: str, error: httpx.HTTPError) -> DebugPageError:
    if isinstance(error, httpx.ConnectError):
        return DebugPageError(
            f"{shown}: {error}; is an endpoint picker running, and is this its --metrics-port?"
        )
    return DebugPageError(f"{shown}: {str(error) or type(error).__name__}")


def decoded(
    client: DebugClient,
    path: str,
    page: type[T],
    why_missing: str = "is it of this version?",
    query: Mapping[str, str] = NO_QUERY,
) -> T:
    """Return the page at ``path`` below ``/debug/``.

    Raises:
        PageError: The page could not be fetched, or has another format.
    """
    try:
        text = client.get(path, query)
    except NoSuchPageError as error:
        raise DebugPageError(f"{error}: {why_missing}") from None
    try:
        return msgspec.json.decode(text, type=page)
    except msgspec.MsgspecError:
        raise DebugPageError(
            f"{client.shown}: the response for /debug/{path} is not that page; is this the"
            " --metrics-port of an endpoint picker of this version?"
        ) from None


def _pools(pages: Sequence[str]) -> Sequence[str]:
    """Return the names of the pools that have their own pages."""
    parts = (page.split("/") for page in pages)
    return sorted({part[3] for part in parts if part[1:3] == ["debug", "pools"] and part[4:]})


def _tls_context(ca_file: str, cert_file: str, prefix: str) -> ssl.SSLContext:
    option, file = f"{prefix}-ca-file", ca_file
    try:
        if ca_file:
            context = ssl.create_default_context(cafile=ca_file)
        else:
            context = httpx.create_ssl_context(trust_env=False)
        if cert_file:
            option, file = f"{prefix}-cert-file", cert_file
            context.load_cert_chain(cert_file)
    except OSError as error:  # including ssl.SSLError
        raise DebugPageError(f"{option}: {file}: {why_unreadable(error)}") from None
    return context


def _parsed(text: str) -> httpx.URL | None:
    try:
        url = httpx.URL(text)
        is_ours = url.scheme in {"http", "https"} and url.host
    except (httpx.InvalidURL, UnicodeError):
        return None
    return url if is_ours else None


def plain(text: str) -> str:
    """Return ``text`` with control characters escaped, because clients choose names of flows."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
