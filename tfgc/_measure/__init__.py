"""Measure and predict cases, each in a separate process: `compare`, `max_batch` and the published suites."""
