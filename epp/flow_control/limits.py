"""How much may wait: in all bands together, and in each."""

from epp.flow_control.bands import Bands, PolicyBand
from epp.flow_control.settings import FlowSettings


def over_limit(settings: FlowSettings, bands: Bands, band: PolicyBand, size_bytes: int) -> str:
    """Return which limit one more request of ``band`` would break; "" if none."""
    if settings.max_requests and bands.waiting >= settings.max_requests:
        return f"{bands.waiting} requests wait, which is the most that may"
    if settings.max_bytes and bands.size_bytes + size_bytes > settings.max_bytes:
        return (
            f"requests of {bands.size_bytes} bytes wait, with this one's {size_bytes} they"
            f" would be over the limit of {settings.max_bytes}"
        )
    if band.waiting >= band.max_requests:
        return (
            f"{band.waiting} requests of priority {band.priority} wait, which is the most that may"
        )
    if band.size_bytes + size_bytes > band.max_bytes:
        return (
            f"requests of priority {band.priority} and {band.size_bytes} bytes wait, with this"
            f" one's {size_bytes} they would be over the limit of {band.max_bytes}"
        )
    return ""
