"""Measure and predict cases, each in a process of its own: `compare`, `max_batch` and the published suites."""
