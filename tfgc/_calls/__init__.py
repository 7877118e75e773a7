"""Plans for any Keras model, by the calls of its layers."""
