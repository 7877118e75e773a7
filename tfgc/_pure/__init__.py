"""A call of TensorFlow or Keras code as a pure function of tensors."""
