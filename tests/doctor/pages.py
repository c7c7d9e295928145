"""HTTP servers of one page each, as model servers and endpoint pickers that misbehave."""

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time

from epp.transport.certificate import load_certificate

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m"} 1.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="m"} 2.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="m"} 0.5
# TYPE sglang:cache_config_info gauge
sglang:cache_config_info{page_size="16",num_pages="100"} 1.0
"""
VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",enable_prefix_caching="False",num_gpu_blocks="500"} 1.0
"""


def models(*names: str) -> str:
    """The list of models."""
    items = ", ".join(f'{{"id": "{name}", "object": "model"}}' for name in names)
    return f'{{"object": "list", "data": [{items}]}}'


@contextmanager
def serving_pages(
    pages: Mapping[str, str], *, ahead_seconds: float = 0.0, tls: Path | None = None
) -> Iterator[str]:
    """Serve pages, other paths with 404; yield the address.

    Args:
        pages: Texts by path.
        ahead_seconds: How far the clock is ahead.
        tls: Folder for a certificate; None for plaintext.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = pages.get(self.path, "").encode()
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time() + ahead_seconds, usegmt=True)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        certificate = load_certificate(None)
        path = tls / "server.pem"
        path.write_bytes(certificate.chain + certificate.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients without TLS
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
