"""Reads the pages and ports of a running endpoint picker for ``epp doctor``."""

import time
from pathlib import Path
from typing import Final, TypeVar

import httpx
import msgspec

from epp.admin import config_page, plugin_page
from epp.admin.config_page import ConfigPage
from epp.admin.plugin_page import PluginsPage
from epp.cli.debug_pages import DebugClient, DebugPageError, NoSuchPageError
from epp.data_layer import endpoints_page
from epp.data_layer.endpoints_page import EndpointsPage
from epp.doctor import DoctorError, UnreadableError
from epp.doctor.clock_skew import ClockSkew
from epp.doctor.ext_proc_port import ask_port
from epp.doctor.running import KubernetesState, RunningPicker, samples_of

T = TypeVar("T")

_KUBERNETES: Final = "kubernetes"
_READINESS: Final = "readiness"


def read_picker(
    url: str,
    *,
    pool: str = "",
    ca_file: str = "",
    cert_file: str = "",
    token_file: Path | None = None,
    grpc_port: int | None = None,
    health_port: int | None = None,
) -> RunningPicker:
    """Return the reports of a running endpoint picker; blocks.

    Args:
        url: URL of its metrics port.
        pool: The pool whose pages are read, if it serves several.
        ca_file: Certificate authorities of the server; "" for well-known ones.
        cert_file: Certificate and key of the client; "" for none.
        token_file: File with a bearer token; None for none.
        grpc_port: Its port for gateways; None to skip it.
        health_port: Its port for health checks; None to skip it.

    Raises:
        DoctorError: Its metrics could not be read.
    """
    try:
        client = DebugClient(
            url,
            pool=pool,
            ca_file=ca_file,
            cert_file=cert_file,
            token_file=token_file,
            option="--epp",
        )
        asked_at = time.time()
        response = client.metrics()
        responded_at = time.time()
    except DebugPageError as error:
        raise DoctorError(str(error)) from None
    try:
        samples = samples_of(response.text)
    except ValueError:
        raise UnreadableError(f"{client.shown}/metrics: no metrics page") from None
    if "llm_d_epp_info" not in samples:
        raise UnreadableError(
            f"{client.shown}/metrics: not the metrics of an endpoint picker; is this its"
            " --metrics-port?"
        )
    host = httpx.URL(url).host
    pages = _Pages(client)
    return RunningPicker(
        url=client.shown,
        samples=samples,
        skew=ClockSkew.of(response.headers.get("date", ""), asked_at, responded_at),
        endpoints=pages.read(endpoints_page.PATH, EndpointsPage),
        plugins=pages.read(plugin_page.PATH, PluginsPage),
        config=pages.read(config_page.PATH, ConfigPage),
        kubernetes=pages.read(_KUBERNETES, KubernetesState, is_optional=True),
        readiness="" if health_port is None else _readiness(host, health_port),
        ext_proc=None if grpc_port is None else ask_port(host, grpc_port),
        faults=tuple(pages.faults),
    )


class _Pages:
    def __init__(self, client: DebugClient) -> None:
        self._client = client
        self.faults: list[str] = []

    def read(self, path: str, page: type[T], *, is_optional: bool = False) -> T | None:
        """Return a page, or None and record a fault; an absent optional page is not a fault."""
        try:
            return msgspec.json.decode(self._client.get(path), type=page)
        except NoSuchPageError as error:
            if not is_optional:
                self.faults.append(str(error))
        except DebugPageError as error:
            self.faults.append(str(error))
        except msgspec.MsgspecError:
            self.faults.append(f"/debug/{path} is not the page of this version")
        return None


def _readiness(host: str, port: int) -> str:
    # Imported late: gRPC takes 100 ms to import.
    from epp.cli.health import HealthError, health_status  # noqa: PLC0415

    try:
        return health_status(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _READINESS)
    except HealthError as error:
        return str(error)
