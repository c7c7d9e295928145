"""The checks of `epp doctor`: find misconfigurations of Envoy and say how to fix them.

`read_file` or `read_admin` returns a `Source`; a `Gateway` is built from it, and `examine` checks
the gateway. No endpoint picker has to run.
"""

from epp.doctor.diagnosis import Diagnosis, Row
from epp.doctor.envoy_checks import examine_envoy
from epp.doctor.errors import DoctorError, UnreadableError
from epp.doctor.findings import Finding, Level
from epp.doctor.gateway import QUEUED_SECONDS, Gateway
from epp.doctor.sources import Source, read_admin, read_file

__all__ = [
    "QUEUED_SECONDS",
    "Diagnosis",
    "DoctorError",
    "Finding",
    "Gateway",
    "Level",
    "Row",
    "Source",
    "UnreadableError",
    "examine_envoy",
    "read_admin",
    "read_file",
]
