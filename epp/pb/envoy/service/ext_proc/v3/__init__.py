"""Generated from proto/envoy/service/ext_proc/v3: the ext_proc messages."""
