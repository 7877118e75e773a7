"""The link between a device and its host, as options of strategies name it."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfgc._errors import OptionError
from tfgc._framework import host_memory
from tfgc.strategies import _host_memory


def with_measured_link(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a strategy with bytes a second where `bandwidth` names a device: its link to the host is measured."""
    device = _host_memory.device_of(options.get("bandwidth"))
    if device is None:
        return dict(options)
    known = {place.name.removeprefix("/device:").upper(): place.name for place in tf.config.list_logical_devices()}
    name = device.upper().removeprefix("/").removeprefix("DEVICE:")
    if name not in known:
        raise OptionError(f"bandwidth={device!r}: TensorFlow has no such device (it has: {', '.join(known)})")
    found = host_memory.bandwidth(known[name])
    if found is None:
        raise OptionError(
            f"bandwidth={device!r}: its memory is the host's, so that nothing is copied: name an accelerator, or give "
            "bytes a second such as '12GB'"
        )
    return {**options, "bandwidth": int(found)}
