"""The options that checks need, as named in reports."""

from typing import Final

CONFIG: Final = "--config-file FILE"
ENDPOINTS: Final = "--endpoint, --endpoints-file, --endpoint-dns, --pool-name or --epp"
EPP: Final = "--epp URL"
CLUSTER: Final = "--pool-name, --all-pools or --endpoint-selector"
PORTS: Final = "--grpc-port, --grpc-health-port or --metrics-port"
EPP_AND_CONFIG: Final = "--epp URL and --config-file FILE"
EPP_AND_HEALTH: Final = "--epp URL and --grpc-health-port"
