"""All options of ``epp serve``: a change of a name, default, form, range or panel shows here."""

from typing import Any, cast

from typer.core import TyperGroup
from typer.main import get_command

from epp.cli import cli

OPTIONS = """
Configuration: --allow-experimental-plugins switch = False
Configuration: --config-file FILE = None
Configuration: --config-text TEXT = None
Configuration: --objects PATH repeatable = None
Configuration: --pool-config-dir DIR = None
Configuration: --seed N = None
Explanations: --explain-bytes SIZE = '64MiB'
Explanations: --explain-decisions N 0..1000000 = 2000
Explanations: --explain-file PATH = None
Explanations: --explain-file-bytes SIZE = '64MiB'
Explanations: --explain-files N 1..1000 = 5
Explanations: --explain-rate PER_SECOND 0.0.. = 100.0
Kubernetes: --all-pools switch = False
Kubernetes: --endpoint-selector SELECTOR = ''
Kubernetes: --endpoint-target-ports PORTS = ''
Kubernetes: --ha-enable-leader-election true|false = 'false'
Kubernetes: --pool-group GROUP = 'inference.networking.k8s.io'
Kubernetes: --pool-name NAME repeatable = None
Kubernetes: --pool-namespace NAME = ''
Kubernetes: --write-object-status true|false = 'true'
Limits on requests: --body-min-rate SIZE = '1KiB'
Limits on requests: --body-timeout-seconds SECONDS 0.0.. = 30.0
Limits on requests: --max-body-bytes SIZE = '64MiB'
Limits on requests: --max-compression-ratio N 0.. = 100
Limits on requests: --max-decompressed-bytes SIZE = '16MiB'
Limits on requests: --max-header-bytes SIZE = '128KiB'
Limits on requests: --max-held-bytes SIZE = '512MiB'
Limits on requests: --max-json-values N 1.. = 4194304
Limits on requests: --max-stream-seconds SECONDS 0.0.. = 0.0
Limits on requests: --max-streams N 0.. = 100000
Limits on requests: --source-header NAME repeatable = None
Limits on requests: --stream-idle-timeout-seconds SECONDS 0.0.. = 0.0
Logs: --log-format json|console = 'json'
Logs: --log-level debug|info|warning|error = None
Logs: --log-queue-bytes SIZE = '16MiB'
Logs: --zap-log-level LEVEL = ''
Logs: -v/--v N = None
Metrics: --admin-token-file FILE = None
Metrics: --deprecated-metrics true|false = ''
Metrics: --enable-admin-writes switch = False
Metrics: --enable-grpc-stream-metrics switch = False
Metrics: --max-metrics-connections N 1.. = 64
Metrics: --max-metrics-page-bytes SIZE = '8MB'
Metrics: --metrics-cert-dir DIR = ''
Metrics: --metrics-client-ca-file FILE = ''
Metrics: --metrics-endpoint-auth true|false = ''
Model servers: --drain-label NAME=VALUE = 'llm-d.ai/drain=true'
Model servers: --endpoint ADDRESS repeatable = None
Model servers: --endpoint-dns NAME[:PORT] repeatable = None
Model servers: --endpoints-file FILE = None
Model servers: --max-scrape-cpu-percent PERCENT 0.1..100.0 = 20.0
Model servers: --max-scrape-page-bytes SIZE = '8MiB'
Model servers: --metrics-staleness-threshold DURATION = ''
Model servers: --refresh-metrics-interval DURATION = '50ms'
Model servers: --scoring-staleness-threshold DURATION = '200ms'
Model servers: --scrape adaptive|fixed = 'adaptive'
Outlier detection: --base-ejection-time DURATION = '1s'
Outlier detection: --consecutive-5xx N 1.. = 3
Outlier detection: --consecutive-scrape-failures N 1.. = 2
Outlier detection: --health-check-interval DURATION = '1s'
Outlier detection: --health-check-path PATH = '/health'
Outlier detection: --hedging-budget PERCENT 0..100 = 2
Outlier detection: --max-ejection-percent PERCENT 0..100 = 50
Outlier detection: --max-ejection-time DURATION = '60s'
Outlier detection: --outlier-detection true|false = 'true'
Outlier detection: --response-overdue-time DURATION = '5s'
Outlier detection: --scrape-overdue-time DURATION = '300ms'
Outlier detection: --slow-start-window DURATION = '2s'
Outlier detection: --success-rate-request-volume N 0.. = 20
Ports: --grpc-health-port PORT 0..65535 = 9003
Ports: --grpc-port PORT 0..65535 = 9002
Ports: --host ADDRESS = '0.0.0.0'
Ports: --listen unix:PATH = ''
Ports: --metrics-port PORT 0..65535 = 9090
Ports: --worker-ports shared|each = 'shared'
Replicas: --replica-lease DURATION = '2s'
Replicas: --replica-name NAME = ''
Replicas: --replica-state URL = ''
Replicas: --replica-state-ca-file FILE = None
Replicas: --replica-state-cert-path DIR = None
Replicas: --replica-state-password-file FILE = None
Requests and responses: --compat none|reference = 'none'
Requests and responses: --destination-list true|false = 'true'
Requests and responses: --disable-endpoint-subset-filter switch = False
Requests and responses: --emit-decision-header switch = False
Requests and responses: --emit-endpoint-scores switch = False
Requests and responses: --error-body json|text = 'json'
Requests and responses: --force-endpoint-key-file FILE = None
Requests and responses: --ignore-client-headers NAME,... = ''
Requests and responses: --keep-control-headers switch = False
Requests and responses: --retry-after-seconds SECONDS 0.. = 1
Requests and responses: --sample-usage FRACTION 0.0..1.0 = 0.0
Requests and responses: --tracing true|false = ''
Start and stop: --drain-delay-seconds SECONDS 0.0.. = None
Start and stop: --drain-timeout DURATION = None
Start and stop: --ready-file FILE = None
Start and stop: --workers N 1..32 = 1
TLS: --cert-path DIR = ''
TLS: --client-ca-file FILE = ''
TLS: --enable-cert-reload true|false = 'true'
TLS: --secure-serving true|false = 'true'
TLS: --tls-cipher-suites NAME,... repeatable = None
TLS: --tls-min-version VERSION = ''
Transport of ext_proc: --grpc-max-recv-msg-size SIZE = ''
Transport of ext_proc: --grpc-max-send-msg-size SIZE = ''
Transport of ext_proc: --health-checking switch = False
Transport of ext_proc: --transport http2|grpcio = 'http2'
Transport of ext_proc: --transport-setting NAME=VALUE repeatable = None
"""
"""Panel, names, form of the value, range and default of each option, sorted."""


def line(option: Any) -> str:  # Typer hides the type of options
    kind = option.type
    ends = (getattr(kind, "min", None), getattr(kind, "max", None))
    words = [
        f"{option.rich_help_panel}:",
        "/".join(option.opts),
        "switch" if option.is_flag else option.metavar or "|".join(kind.choices),
    ]
    if option.multiple:
        words.append("repeatable")
    if ends != (None, None):
        words.append("..".join("" if each is None else str(each) for each in ends))
    return f"{' '.join(words)} = {option.default!r}"


def test_the_options_of_serve_are_those_of_the_table() -> None:
    command = cast("TyperGroup", get_command(cli)).commands["serve"]
    assert sorted(map(line, command.params)) == OPTIONS.strip().splitlines()
