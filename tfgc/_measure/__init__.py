"""Measure and predict cases, each in a separate process: `compare` and `max_batch`."""
