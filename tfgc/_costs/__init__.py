"""What each node computes and saves for its backward pass, read from TensorFlow's own gradient graphs."""
