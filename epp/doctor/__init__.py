"""The checks of `epp doctor`: find misconfigurations of a deployment and say how to fix them.

Checks of an Envoy: `read_file` or `read_admin` returns a `Source`; a `Gateway` is built from it,
and `examine_envoy` checks the gateway. No endpoint picker has to run.

Checks of everything else: a `Deployment` holds the data that was read from the configuration, the
model servers, a running endpoint picker and a cluster, and `examine_deployment` checks it. Checks
are functions of this data and read nothing themselves.
"""

from epp.doctor.deployment import Deployment, ScrapeTimes
from epp.doctor.deployment_checks import examine_deployment
from epp.doctor.diagnosis import Diagnosis, DiagnosisRow
from epp.doctor.envoy_checks import examine_envoy, skip_envoy
from epp.doctor.errors import DoctorError, UnreadableError
from epp.doctor.findings import Finding, Level
from epp.doctor.gateway import QUEUED_SECONDS, Gateway
from epp.doctor.listening_ports import try_ports
from epp.doctor.model_servers import probe_all
from epp.doctor.running import RunningPicker
from epp.doctor.sources import Source, read_admin, read_file, read_text

__all__ = [
    "QUEUED_SECONDS",
    "Deployment",
    "Diagnosis",
    "DiagnosisRow",
    "DoctorError",
    "Finding",
    "Gateway",
    "Level",
    "RunningPicker",
    "ScrapeTimes",
    "Source",
    "UnreadableError",
    "examine_deployment",
    "examine_envoy",
    "probe_all",
    "read_admin",
    "read_file",
    "read_text",
    "skip_envoy",
    "try_ports",
]
