"""The child process that compiles a step for a GPU: the only place that imports jax, and it imports nothing of tfgc.

Run as `python -P _child_process.py PARENT worker.py STEP TARGET REPLY`: files with a step in StableHLO, with the text
of a `GpuTargetConfigProto`, and for what was found, as JSON. Jax has no public way to compile a StableHLO module for a
described device, so private modules are used; an error names the version.
"""

import importlib.metadata
import json
import pathlib
import sys
import time


def compile_step(step: bytes, target: str) -> dict:
    """Compile a step; return the bytes that the compiler allocates, and how long it took."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    topology = topologies.get_topology_desc("gpu", platform="cuda", target_config=target, topology="1x1x1")
    device = topology.devices[0]
    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, step)
        copies = []

        def note(operation):
            if operation.name == "mhlo.copy":
                copies.append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(note)
        for operation in copies:  # TensorFlow marks returned values by it, and jax's compiler does not know it
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        begin = time.perf_counter()
        options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
        executable = device.client.compile(module, xla_client.DeviceList((device,)), options)
    stats = executable.get_compiled_memory_stats()
    return {
        "seconds": time.perf_counter() - begin,
        "temp_bytes": stats.temp_size_in_bytes,
        "argument_bytes": stats.argument_size_in_bytes,
        "output_bytes": stats.output_size_in_bytes,
        "alias_bytes": stats.alias_size_in_bytes,
        "compiler": f"jax-cuda12-plugin {importlib.metadata.version('jax-cuda12-plugin')}",
    }


if __name__ == "__main__":
    given, device, reply = map(pathlib.Path, sys.argv[1:])
    reply.write_text(json.dumps(compile_step(given.read_bytes(), device.read_text())))
