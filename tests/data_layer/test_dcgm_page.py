"""A DCGM exporter's page from end to end: source, connection, extractor, endpoint."""

import time

from epp.data_layer import Scraper, page_opener
from epp_plugins.data_sources.dcgm import DcgmDataSource, DcgmParams
from epp_plugins.data_sources.dcgm_extractor import DcgmExtractor, Params
from epp_plugins.state_keys import GPU_UTILIZATION

from .metrics_server import StartServer, page_response
from .scraping import Binding, Observer, make_store, running


async def test_a_gpus_utilization_comes_and_goes(start_server: StartServer) -> None:
    line = b'# TYPE DCGM_FI_DEV_GPU_UTIL gauge\nDCGM_FI_DEV_GPU_UTIL{gpu="0",pod="%b"} 42\n'
    server = await start_server(page_response(line % b"0"))
    source = DcgmDataSource("source", DcgmParams(port=0), open_page=page_opener(time.monotonic))
    extractor = DcgmExtractor("dcgm-extractor", Params())
    store, observer = make_store(server.address), Observer()  # its only endpoint is ns/0
    bindings = [Binding(source, [extractor])]
    async with running(Scraper(store, bindings, interval_seconds=0.01, observer=observer)):
        await observer.until("")
        assert server.requests[0].startswith(b"GET /metrics ")
        assert store.snapshot[0].attribute(GPU_UTILIZATION) == 0.42
        server.respond = page_response(line % b"another")
        await observer.until("extract page")
        assert store.snapshot[0].attribute(GPU_UTILIZATION) is None
    assert set(observer.extract_errors) == {("dcgm-data-source", "dcgm-extractor", "page")}
