"""A training step as data: traced once, as operations in the order in which they run."""
