"""``metrics-data-source`` and ``models-data-source``: scrape a page of each endpoint over HTTP.

Both request ``path`` from each endpoint every ``interval`` (by default
``--refresh-metrics-interval``) over a persistent connection. With ``port: 0`` the endpoint's own
port is used. By default any server certificate is accepted. With ``https`` and
``insecureSkipVerify: false`` it is verified: it must be issued by an authority in ``caCertPath``,
or by one that the system trusts, and be valid for the endpoint's IP address. ``clientCertPath`` and
``clientKeyPath`` are for servers that require a client certificate.

Example::

    plugins:
      - type: metrics-data-source
        parameters: {scheme: https, insecureSkipVerify: false, caCertPath: /etc/epp/ca.pem}
      - type: models-data-source
        parameters: {interval: 10s}
"""

import ssl
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from epp.data_layer.plugins import (
    DataSource,
    OpenPage,
    PageClient,
    join_address,
    split_address,
)
from epp.inputs import optional_duration_seconds
from epp.scheduling import Endpoint

PagePath = Annotated[str, msgspec.Meta(pattern=r"^[!-~]+$(?!\n)")]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_UNUSED_CA: Final = (
    "caCertPath has no effect unless insecureSkipVerify is false: any certificate is accepted; set"
    " insecureSkipVerify: false, or remove caCertPath"
)


class MetricsParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``metrics-data-source``."""

    scheme: Literal["http", "https"] = "http"
    """``https`` to scrape over TLS."""
    path: PagePath = "/metrics"
    """Path of the page: ASCII without spaces."""
    port: Port = 0
    """Port of the page; 0 for the endpoint's own."""
    insecure_skip_verify: bool = True
    """Whether to accept any server certificate."""
    ca_cert_path: str = ""
    """PEM file with the authorities to trust; "" for the system's. Used only with
    ``insecureSkipVerify: false``; otherwise any certificate is accepted, and a path given here
    causes a warning."""
    client_cert_path: str = ""
    """PEM file with the client certificate; "" for none."""
    client_key_path: str = ""
    """PEM file with the key of ``clientCertPath``."""
    # The check also gets numbers, and its error asks for a unit; the type's would ask for quotes.
    interval: Annotated[str, msgspec.Meta(extra={"check": optional_duration_seconds})] = ""
    """Scrape interval, such as ``500ms``; a shorter one than 50 ms counts as 50 ms. "" for that of
    the process."""


class ModelsParams(MetricsParams, frozen=True):
    """Parameters of ``models-data-source``."""

    path: PagePath = "/v1/models"
    """Path of the list: ASCII without spaces."""


class HttpSource(DataSource):
    """Scrapes one page of every endpoint."""

    def __init__(self, name: str, params: MetricsParams, *, open_page: OpenPage) -> None:
        self.name = name
        self.interval_seconds = optional_duration_seconds(params.interval)
        self._path = params.path if params.path.startswith("/") else f"/{params.path}"
        self._port = params.port
        self._tls = _tls(params) if params.scheme == "https" else None
        if self._tls is not None and params.ca_cert_path and params.insecure_skip_verify:
            self.warnings = (_UNUSED_CA,)  # no error, as the Go EPP accepts such files
        self._open_page = open_page

    def open(self, endpoint: Endpoint) -> PageClient:
        return self._open_page(self.address_of(endpoint), self._path, self._tls)

    def address_of(self, endpoint: Endpoint) -> str:
        """Return the address to scrape for ``endpoint``, as ``host:port``."""
        if not self._port:
            return endpoint.address
        return join_address(split_address(endpoint.address)[0], self._port)


class MetricsDataSource(HttpSource):
    """Scrapes the metrics page of a model server."""

    type: ClassVar[str] = "metrics-data-source"


class ModelsDataSource(HttpSource):
    """Requests the list of models of a model server."""

    type: ClassVar[str] = "models-data-source"

    def __init__(self, name: str, params: ModelsParams, *, open_page: OpenPage) -> None:
        super().__init__(name, params, open_page=open_page)


def _tls(params: MetricsParams) -> ssl.SSLContext:
    # Without the system's certificates: they take 25 ms to load, on the event loop.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if params.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not params.ca_cert_path:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(params.ca_cert_path)
        except OSError as error:  # including SSLError for an invalid certificate
            raise ValueError(f"caCertPath: {params.ca_cert_path}: {error.strerror}") from None
    if bool(params.client_cert_path) is not bool(params.client_key_path):
        raise ValueError("clientCertPath and clientKeyPath: give both or none")
    if params.client_cert_path:
        try:
            context.load_cert_chain(params.client_cert_path, params.client_key_path)
        except OSError as error:
            raise ValueError(
                f"clientCertPath: {params.client_cert_path} with clientKeyPath"
                f" {params.client_key_path}: {error.strerror}"
            ) from None
    return context
