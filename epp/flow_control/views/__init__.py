"""Flow control as operators see it: gauges and the page /debug/session."""
