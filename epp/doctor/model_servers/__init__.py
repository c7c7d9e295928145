"""What the model servers of a pool speak and serve, found out by asking them."""

from epp.doctor.model_servers.probing import probe_all
from epp.doctor.model_servers.server import Extraction, ModelServer, Speaks

__all__ = ["Extraction", "ModelServer", "Speaks", "probe_all"]
