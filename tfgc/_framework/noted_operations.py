"""Which operations a block of code makes."""

from typing import Any

import tensorflow as tf


class NotedOperations:
    """Notes the operations that are made in a block of code in the graph being built."""

    def __enter__(self) -> "NotedOperations":
        self._graph = tf.compat.v1.get_default_graph()
        self._start = len(self._graph.get_operations())
        self.made: list[tf.Operation] = []
        return self

    def __exit__(self, *exception: Any) -> None:
        self.made = self._graph.get_operations()[self._start :]
