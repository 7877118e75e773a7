"""A step back in TensorFlow: built into the graph at hand."""
