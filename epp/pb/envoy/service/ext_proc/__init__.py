"""Generated from proto/envoy/service/ext_proc."""
