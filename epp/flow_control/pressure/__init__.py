"""How full the pool is, which bands that blocks, and eviction of requests in flight."""
