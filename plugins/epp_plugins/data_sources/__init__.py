"""In-tree discovery plugins, data sources and extractors."""
