"""Measurements of this project, and of what it is compared with: `python -m benchmarks`."""
