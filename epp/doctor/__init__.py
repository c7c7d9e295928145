"""Envoy's configuration looked over for traps: what `epp doctor` finds and how to mend it.

A `Source` is read from a file or an admin endpoint, arranged as a `Gateway`, and looked over by
`examine`. Nothing of the endpoint picker is needed for that, nor a connection to it.
"""

from epp.doctor.diagnosis import Diagnosis, Row, examine
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
    "examine",
    "read_admin",
    "read_file",
]
