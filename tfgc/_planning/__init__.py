"""From a Keras model to a plan: `plan`, `pareto`, `estimate` and the front of plans."""
