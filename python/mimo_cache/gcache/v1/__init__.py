"""Messages and stubs of the wire contract `proto/gcache/v1`, generated (`tests/python/test_gcache_generated.py`)."""
