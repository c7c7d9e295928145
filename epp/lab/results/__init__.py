"""What became of the requests of a load run or a simulation, and summaries of it."""

from epp.lab.results.distribution import Distribution
from epp.lab.results.record import ErrorKind, Record
from epp.lab.results.slo import Slo

__all__ = ["Distribution", "ErrorKind", "Record", "Slo"]
