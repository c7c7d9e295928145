"""Generated from proto/vllm/grpc."""
