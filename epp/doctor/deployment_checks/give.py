"""The options with which checks run, as reports name them."""

from typing import Final

CONFIG: Final = "--config-file FILE"
ENDPOINTS: Final = "--endpoint, --endpoints-file, --endpoint-dns, --pool-name or --epp"
EPP: Final = "--epp URL"
CLUSTER: Final = "--pool-name, --all-pools or --endpoint-selector"
PORTS: Final = "--grpc-port, --grpc-health-port or --metrics-port"
EPP_AND_CONFIG: Final = "--epp URL and --config-file FILE"
EPP_AND_HEALTH: Final = "--epp URL and --grpc-health-port"
