"""The errors that say that no memory is left.

What else a trace raises may be the user's, and is answered by running plainly. These are handed on: the next call may
succeed, and a plain run would need even more.
"""

import tensorflow as tf

OUT_OF_MEMORY = (MemoryError, tf.errors.ResourceExhaustedError)
