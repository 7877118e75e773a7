"""Predict the peak memory and the work of one training step from a graph and a plan."""
