"""Screeners restrict the candidates of a request before anything is computed for them."""
