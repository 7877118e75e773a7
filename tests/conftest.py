"""Every test starts from the same seeds and from Keras's default state."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest
import tensorflow as tf

# Traces make objects by the million: at Python's thresholds a tenth of the suite's time goes into looking for garbage.
gc.freeze()
gc.set_threshold(100_000, 50, 100)


@pytest.fixture(autouse=True)
def fresh():
    keras.config.set_dtype_policy("float32")
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    yield
    keras.config.set_dtype_policy("float32")


def pytest_collection_modifyitems(items):
    if not tf.config.list_physical_devices("GPU"):
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
