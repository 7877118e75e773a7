"""What XLA's GPU compiler allocates for a training step, on a machine that needs no GPU."""
