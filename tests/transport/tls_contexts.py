"""TLS contexts for tests."""

import ssl

from epp.transport import TlsSettings, load_certificate, make_context


def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return a server's context, and the context of a client that trusts its certificate."""
    certificate = load_certificate(None)
    client = ssl.create_default_context(cadata=certificate.chain.decode())
    client.set_alpn_protocols(["h2"])
    return make_context(TlsSettings(), certificate), client
