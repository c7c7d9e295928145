"""Generated from proto/vllm."""
