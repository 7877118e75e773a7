"""What TensorFlow and Keras hold for a whole thread or graph, read and changed here and nowhere else."""
