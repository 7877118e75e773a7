"""The replicas of a `tf.distribute.Strategy`: which one runs, and their copies of a variable."""

from typing import Any

import tensorflow as tf


def replica() -> int | None:
    """Return the number of the replica that calls this in eager `Strategy.run`, None if no strategy does."""
    here = tf.distribute.get_replica_context() if tf.distribute.has_strategy() else None
    return None if here is None else int(here.replica_id_in_sync_group)


def copies(storage: Any) -> list[Any]:
    """The variables under one of a strategy, or the variable itself; none for None."""
    parts = getattr(storage, "values", None)
    return [part for part in (parts if isinstance(parts, tuple) else (storage,)) if part is not None]
