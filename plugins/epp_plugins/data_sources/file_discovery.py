"""``file-discovery``: reads the endpoints of the pool from a file and watches it for changes.

It needs no Kubernetes. The file is checked every half second; edits in place, atomic renames and
the symbolic links of a mounted ConfigMap are detected. If the file is later removed or invalid, the
last valid endpoints stay in the pool, and each distinct error is logged once as a warning.

A file with one invalid entry is refused as a whole. With ``--compat=reference`` its other entries
are used, unknown fields are ignored, and of two entries with the same name the last one counts; the
log names what was left out.

The file is YAML or JSON::

    endpoints:
      - name: vllm-0
        namespace: default      # this is the default
        address: 10.0.0.7       # an IP address, not a host name
        port: "8000"            # or 8000, without the quotes
        labels: {llm-d.ai/role: decode}

Example::

    plugins:
      - type: file-discovery
        parameters:
          path: /etc/epp/endpoints.yaml
          watchFile: true
    dataLayer:
      discovery: {pluginRef: file-discovery}
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
import structlog

from epp.data_layer.plugins import (
    DiscoveryError,
    EndpointDiscovery,
    EndpointSink,
    EndpointSpec,
)
from epp.inputs import FollowedFile, UnreadableFileError
from epp_plugins.data_sources.endpoints_file import MAX_FAULTS, EntryRules, parse, parse_leniently

_log = structlog.get_logger(__name__)


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``file-discovery``."""

    path: Annotated[str, msgspec.Meta(min_length=1)]
    """The endpoints file, as above."""
    watch_file: bool = True
    """Whether the file is watched for changes; otherwise it is read once."""


class FileDiscovery(EndpointDiscovery):
    """Reports the endpoints of a file.

    Args:
        name: Name of the instance.
        params: Its parameters.
        compat: ``reference`` to leave out invalid entries instead of refusing the file.
        poll_seconds: Interval at which the file is checked.
    """

    type: ClassVar[str] = "file-discovery"
    rules: ClassVar[EntryRules] = EntryRules()
    """Rules for the entries of the file."""

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        compat: Literal["none", "reference"] = "none",
        poll_seconds: float = 0.5,
    ) -> None:
        self.name = name
        self._is_lenient = compat == "reference"
        self._path = Path(params.path)
        self._file = FollowedFile(self._path)
        self._watch = params.watch_file
        self._poll_seconds = poll_seconds
        self._content = b""
        """The content that was last read."""
        self._used: bytes | None = None
        """The content whose endpoints are in the pool."""
        self._parsed: tuple[bytes, Sequence[EndpointSpec] | DiscoveryError] | None = None
        """The content that was last parsed, and the result."""
        self._fault: str | None = None

    async def run(self, sink: EndpointSink) -> None:
        await self._load(sink)
        if not self._watch:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._load(sink)
            except DiscoveryError as error:
                self._warn(error)

    def dump_state(self) -> Mapping[str, object]:
        _, parsed = self._parsed or (b"", ())
        return {
            "has_been_read": self._used is not None,
            "is_in_use": self._used == self._content,
            "endpoints_in_file": None if isinstance(parsed, DiscoveryError) else len(parsed),
            "fault": self._fault or "",
        }

    async def _load(self, sink: EndpointSink) -> None:
        """Read the file if it has changed, and report its endpoints.

        After a fault, report them even if the file is unchanged: another source may have released a
        name.

        Raises:
            DiscoveryError: The file is missing or invalid, or another source has an endpoint of the
                same name; the pool is unchanged.
        """
        try:
            content = await asyncio.to_thread(self._file.read_if_changed)
        except UnreadableFileError as error:
            raise DiscoveryError(f"endpoints file {self._path}: {error}") from error
        if content is not None:
            self._content = content
        if self._content != self._used or self._fault is not None:
            specs = await self._specs(self._content)
            sink.replace_endpoints(self.name, specs)
            if self._used is not None and self._content != self._used:
                _log.info("endpoints file reloaded", path=str(self._path), endpoints=len(specs))
            self._used = self._content
        if self._fault is not None:
            self._fault = None
            _log.info("endpoints file recovered", path=str(self._path))

    async def _specs(self, content: bytes) -> Sequence[EndpointSpec]:
        """Return the endpoints of ``content``; results and errors are cached."""
        if self._parsed is None or self._parsed[0] != content:
            try:
                self._parsed = content, await asyncio.to_thread(self._parse, content)
            except DiscoveryError as error:
                self._parsed = content, error
        specs = self._parsed[1]
        if isinstance(specs, DiscoveryError):
            raise specs
        return specs

    def _parse(self, content: bytes) -> Sequence[EndpointSpec]:
        if not self._is_lenient:
            return parse(self._path, content, self.rules)
        specs, faults = parse_leniently(self._path, content, self.rules)
        if faults:
            _log.warning(
                "endpoints file has faults, its sound entries are used",
                path=str(self._path),
                endpoints=len(specs),
                faults=faults[:MAX_FAULTS],
                more_faults=max(0, len(faults) - MAX_FAULTS),
            )
        return specs

    def _warn(self, error: DiscoveryError) -> None:
        fault = str(error)
        if fault != self._fault:
            self._fault = fault
            _log.warning(
                "endpoints file refused, last good endpoints kept",
                path=str(self._path),
                error=fault,
            )
