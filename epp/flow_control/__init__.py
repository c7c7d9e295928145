"""Flow control: how full the pool is, and what that means for who asks."""

from epp.flow_control.admission import SheddingAdmission
from epp.flow_control.plugins import SaturationDetector

__all__ = ["SaturationDetector", "SheddingAdmission"]
