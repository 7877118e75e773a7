"""The GPUs that a step can be compiled for, described by published figures.

Sources: NVIDIA's data sheets and tuning guides of each architecture, and for H100, A100 and V100 the descriptions in
openxla/xla, `xla/backends/gpu/target_config/specs`.
"""

import dataclasses

from tfgc._errors import OptionError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Target:
    """What XLA's GPU compiler knows of a device."""

    device: str  # its name
    capability: tuple[int, int]  # its CUDA compute capability: (major, minor)
    memory_bytes: int
    cores: int  # streaming multiprocessors
    fpus_per_core: int  # float32 units of each
    clock_ghz: float
    memory_bandwidth: int  # bytes a second
    l2_bytes: int  # size of the L2 cache
    threads_per_core: int  # that are resident
    shared_memory_per_core: int  # bytes
    shared_memory_per_block: int  # bytes that a block may ask for

    def description(self) -> str:
        """The device as text of XLA's `GpuTargetConfigProto`."""
        major, minor = self.capability
        fields = {
            "core_count": self.cores,
            "fpus_per_core": self.fpus_per_core,
            "clock_rate_ghz": self.clock_ghz,
            "threads_per_warp": 32,
            "threads_per_block_limit": 1024,
            "threads_per_core_limit": self.threads_per_core,
            "registers_per_block_limit": 65536,
            "registers_per_core_limit": 65536,
            "shared_memory_per_block": 49152,
            "shared_memory_per_block_optin": self.shared_memory_per_block,
            "shared_memory_per_core": self.shared_memory_per_core,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": self.memory_bandwidth,
            "l2_cache_size": self.l2_bytes,
            "device_memory_size": self.memory_bytes,
        }
        lines = "\n".join(f"  {name}: {value}" for name, value in fields.items())
        return (
            f'platform_name: "CUDA"\ndevice_description_str: "{self.device}"\n'
            "dnn_version_info { major: 9 minor: 8 patch: 0 }\nruntime_version { major: 12 minor: 9 }\n"
            f"gpu_device_info {{\n  cuda_compute_capability {{ major: {major} minor: {minor} }}\n{lines}\n}}\n"
        )


KIB, MIB = 2**10, 2**20
TARGETS = {
    "h100": Target(
        "NVIDIA H100 80GB HBM3", (9, 0), 84978434048, 132, 128, 1.98, 3352320000000, 50 * MIB, 2048, 228 * KIB,
        227 * KIB,
    ),
    "a100": Target(
        "NVIDIA A100-SXM4-80GB", (8, 0), 85100068864, 108, 64, 1.41, 2039040000000, 40 * MIB, 2048, 164 * KIB,
        163 * KIB,
    ),
    "a100_40gb": Target(
        "NVIDIA A100-SXM4-40GB", (8, 0), 42331013120, 108, 64, 1.41, 1555200000000, 40 * MIB, 2048, 164 * KIB,
        163 * KIB,
    ),
    "l4": Target("NVIDIA L4", (8, 9), 24 * 10**9, 58, 128, 2.04, 300000000000, 48 * MIB, 1536, 100 * KIB, 99 * KIB),
    "t4": Target("Tesla T4", (7, 5), 15843721216, 40, 64, 1.59, 320000000000, 4 * MIB, 1024, 64 * KIB, 64 * KIB),
    "v100": Target(
        "Tesla V100-SXM2-16GB", (7, 0), 16935682048, 80, 64, 1.53, 898048000000, 6 * MIB, 2048, 96 * KIB, 96 * KIB
    ),
}  # fmt: skip


def find(name: str) -> Target:
    """The target of a name.

    >>> find("t4").capability
    (7, 5)
    """
    if name not in TARGETS:
        raise OptionError(f"target={name!r}: choose from {', '.join(sorted(TARGETS))}{did_you_mean(name, TARGETS)}")
    return TARGETS[name]


def check_mode(said: str, mode: str) -> None:
    """Raise `OptionError` unless steps are compiled in this mode."""
    if mode != "xla":
        raise OptionError(f"{said}: XLA compiles steps for a GPU; also give mode='xla', in the shell --mode xla")
