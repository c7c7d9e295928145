"""Generated from proto/tokenization: the messages of llm-d's tokenizer service."""
