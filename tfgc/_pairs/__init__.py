"""A function and its gradients, traced as one step, rewritten, and run as functions that a gradient joins."""
