"""Training in less memory, for TensorFlow 2 and Keras 3: exact recomputation."""

import lazy_loader

__version__ = "0.1.0"

# Each name is imported when it is first asked for: planning and help need no TensorFlow.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
