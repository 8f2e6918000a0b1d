"""Parts of the benchmark `player`."""
