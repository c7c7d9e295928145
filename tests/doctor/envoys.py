"""A correct gateway, into which a test puts a trap."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from epp.doctor import Diagnosis, DiagnosisRow, Gateway, examine_envoy
from epp.doctor.sources import Source, source

DESTINATION = "x-gateway-destination-endpoint"

SOUND = Path(__file__).with_name("sound.yaml").read_text()

MANAGER = "listeners[gateway].filter_chains[0].filters[http].typed_config"
PICKER = f"{MANAGER}.http_filters[picker].typed_config"
ROUTE = f"{MANAGER}.route_config.virtual_hosts[all].routes[models]"
HTTP = "typed_extension_protocol_options[envoy.extensions.upstreams.http.v3.HttpProtocolOptions]"
POLICY = "clusters[pool].load_balancing_policy.policies[0].typed_extension_config.typed_config"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envoy:
    """A bootstrap and the places in it where traps are set."""

    document: Json

    @property
    def listener(self) -> Json:
        return self._found("listeners", 0)

    @property
    def manager(self) -> Json:
        found: Json = self.listener["filter_chains"][0]["filters"][0]["typed_config"]
        return found

    @property
    def filters(self) -> list[Json]:
        found: list[Json] = self.manager["http_filters"]
        return found

    @property
    def picker(self) -> Json:
        found: Json = self.filters[0]["typed_config"]
        return found

    @property
    def mode(self) -> Json:
        found: Json = self.picker["processing_mode"]
        return found

    @property
    def host(self) -> Json:
        found: Json = self.manager["route_config"]["virtual_hosts"][0]
        return found

    @property
    def route(self) -> Json:
        found: Json = self.host["routes"][0]
        return found

    @property
    def action(self) -> Json:
        found: Json = self.route["route"]
        return found

    @property
    def epp(self) -> Json:
        return self._found("clusters", 0)

    @property
    def pool(self) -> Json:
        return self._found("clusters", 1)

    @property
    def policy(self) -> Json:
        policies = self.pool["load_balancing_policy"]["policies"]
        found: Json = policies[0]["typed_extension_config"]["typed_config"]
        return found

    def http(self, cluster: Json) -> Json:
        options = cluster["typed_extension_protocol_options"]
        found: Json = options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
        return found

    def buffered(self) -> None:
        """Adaptive mode."""
        self.mode.update(request_body_mode="BUFFERED", request_trailer_mode="SKIP")

    def original_dst(self, header: str | None = DESTINATION) -> None:
        """Go where the header says."""
        del self.pool["load_balancing_policy"], self.pool["load_assignment"]
        options: Json = {"use_http_header": True}
        if header is not None:
            options["http_header_name"] = header
        self.pool.update(
            type="ORIGINAL_DST", lb_policy="CLUSTER_PROVIDED", original_dst_lb_config=options
        )

    def keep(self, *headers: str) -> None:
        """Leave a client's headers as they are."""
        extension = self.manager["early_header_mutation_extensions"][0]["typed_config"]
        extension["mutations"] = [
            each for each in extension["mutations"] if each["remove"] not in headers
        ]

    def report(self, **known: Any) -> Diagnosis:
        return report(self.document, **known)

    def _found(self, kind: str, index: int) -> Json:
        found: Json = self.document["static_resources"][kind][index]
        return found


def make_envoy() -> Envoy:
    """A gateway without a trap."""
    return Envoy(yaml.safe_load(SOUND))


def report(document: object, ext_proc: str | None = None, **known: Any) -> Diagnosis:
    """All checks over a document, with the counters and the version that an admin page tells."""
    read = source(document, "test")
    version = known.get("version", read.version)
    given = Source(read.roots, version, known.get("counters"), read.bootstraps)
    return examine_envoy(Gateway(given, ext_proc))


def rows_of(found: Diagnosis, check: str) -> list[DiagnosisRow]:
    return [row for row in found.rows if row.check == check]


def level_of(found: Diagnosis, check: str) -> str:
    """The worst of a check."""
    return rows_of(found, check)[0].finding.level.value
