"""Run a function twice: once forward, and again when its gradient is asked for."""
