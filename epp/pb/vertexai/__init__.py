"""Generated from proto/vertexai: the envelope of the prediction service."""
