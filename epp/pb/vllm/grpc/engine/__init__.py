"""Generated from proto/vllm/grpc/engine: the messages of the vLLM engine."""
