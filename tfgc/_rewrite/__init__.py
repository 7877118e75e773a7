"""Step -> Step: what is recomputed, the one order in which a step runs, and the waits that hold it."""
