"""The cases, by the part of the reference's tests that they are from."""

from parity.cases.candidates import CANDIDATES
from parity.cases.director import DIRECTOR
from parity.cases.director_refusals import DIRECTOR_REFUSALS
from parity.cases.grpc import GRPC_CASES
from parity.cases.http import HTTP
from parity.cases.refusals import REFUSALS
from parity.cases.responses import RESPONSES
from parity.cases.streams import STREAMS

CASES = (
    *HTTP,
    *REFUSALS,
    *RESPONSES,
    *STREAMS,
    *GRPC_CASES,
    *DIRECTOR,
    *DIRECTOR_REFUSALS,
    *CANDIDATES,
)

__all__ = ["CASES"]
