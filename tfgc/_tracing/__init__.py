"""Read a Keras model as a graph of nodes."""
