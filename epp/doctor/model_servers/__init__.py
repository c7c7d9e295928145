"""Queries the model servers of a pool for their protocols, models and metrics."""

from epp.doctor.model_servers.probing import probe_all
from epp.doctor.model_servers.server import Extraction, ModelServer, Speaks

__all__ = ["Extraction", "ModelServer", "Speaks", "probe_all"]
