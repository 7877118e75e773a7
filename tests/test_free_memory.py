"""What `budget="auto"` takes for free: by TensorFlow's allocator on a GPU, by machine and container on a CPU."""

import types

import psutil
import pytest
import tensorflow as tf

import tfgc
from tfgc._errors import OptionError
from tfgc._planning import budgets, free_memory

GB = 10**9
UNLIMITED = 9223372036854771712  # what version 1 says where there is no limit


def device(name, limit):
    return types.SimpleNamespace(name=f"/job:localhost/replica:0/task:0/device:{name}", memory_limit_bytes=limit)


@pytest.fixture
def gpu(monkeypatch):
    """A machine with two GPUs whose allocator may use 14 GB, of which 3 GB are handed out."""
    listed = [device("CPU:0", 2**28), device("GPU:0", 14 * GB), device("GPU:1", 15 * GB)]
    handed_out = {"GPU:0": 3 * GB, "GPU:1": 0}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU"] if kind == "GPU" else [])
    monkeypatch.setattr(free_memory, "devices", lambda: listed)
    monkeypatch.setattr(free_memory, "handed_out", lambda name: handed_out[name])
    return types.SimpleNamespace(listed=listed, handed_out=handed_out)


def test_a_gpu_has_what_its_allocator_may_use_less_what_it_handed_out(gpu):
    assert free_memory.free_bytes() == 11 * GB
    assert budgets.budget_bytes("auto", None) == int(11 * GB * 0.9)
    gpu.handed_out["GPU:0"] = 15 * GB
    assert free_memory.free_bytes() == 0


@pytest.mark.parametrize("listed", [[], [device("CPU:0", 2**28)], [device("GPU:0", 0)]])
def test_a_gpu_without_a_known_limit_is_an_error(gpu, listed):
    gpu.listed[:] = listed
    with pytest.raises(OptionError) as error:
        free_memory.free_bytes()
    assert str(error.value) == (
        "budget='auto': TensorFlow does not report how much memory it may use on GPU:0; give bytes"
    )


def test_tensorflow_lists_its_devices_and_is_as_before():
    listed = free_memory.devices()
    assert [d.name.rpartition("device:")[2] for d in listed] == ["CPU:0"]
    assert listed[0].memory_limit_bytes == 2**28
    assert tf.executing_eagerly()


@pytest.mark.gpu
def test_the_limit_of_a_real_gpu():
    held = tf.zeros(2**24)
    before = free_memory.free_bytes()
    more = tf.zeros(2**24)
    assert before - 2**27 <= free_memory.free_bytes() <= before - 2**26
    assert before < next(d.memory_limit_bytes for d in free_memory.devices() if d.name.endswith("GPU:0"))
    del held, more


def cgroup(root, groups, lines):
    """Files of control groups, from folder to contents by name; and what the process is in."""
    for folder, files in groups.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for name, contents in files.items():
            (root / folder / name).write_text(f"{contents}\n")
    (root / "own").write_text("".join(f"{line}\n" for line in lines))
    return {"root": str(root), "own": str(root / "own")}


def second(most, used, cache=0):
    return {"memory.max": most, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 7"}


def first(most, used, cache=0):
    return {
        "memory.limit_in_bytes": most, "memory.usage_in_bytes": used,
        "memory.stat": f"inactive_file 1\ntotal_inactive_file {cache}",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "lines", "left"),
    [
        ({"": second(8 * GB, 3 * GB)}, ["0::/"], 5 * GB),  # a container
        ({"": second(8 * GB, 3 * GB, GB)}, ["0::/"], 6 * GB),
        ({"": second("max", 3 * GB)}, ["0::/"], None),
        ({"job/step": second("max", GB), "job": second(4 * GB, 3 * GB)}, ["0::/job/step"], GB),  # a limit around
        ({"job/step": second(2 * GB, GB // 2), "job": second(9 * GB, 3 * GB)}, ["0::/job/step"], 3 * GB // 2),
        ({"job": second(2 * GB, 3 * GB)}, ["0::/job"], 0),
        ({"memory": first(8 * GB, 3 * GB, GB)}, ["9:cpu:/x", "4:memory:/outside/of/it", "0::/"], 6 * GB),
        ({"memory/job": first(2 * GB, GB), "memory": first(UNLIMITED, GB)}, ["4:memory:/job"], GB),
        ({"memory/job": first(2 * GB, GB)}, ["4:cpu,memory:/job"], GB),
        ({}, ["4:memory:/job", "0::/"], None),
        ({"": {"memory.max": 8 * GB}}, ["0::/"], None),
        ({"": second(8 * GB, 3 * GB)}, [], None),
    ],
)
def test_what_is_left_of_a_containers_limit(groups, lines, left, tmp_path):
    assert free_memory.container_bytes(**cgroup(tmp_path, groups, lines)) == left


def test_without_control_groups_there_is_no_limit(tmp_path):
    assert free_memory.container_bytes(str(tmp_path), str(tmp_path / "none")) is None


@pytest.mark.parametrize(("left", "free"), [(None, 7 * GB), (5 * GB, 5 * GB), (9 * GB, 7 * GB)])
def test_a_cpu_has_what_is_free_in_the_machine_or_left_in_the_container(left, free, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=7 * GB, total=16 * GB))
    monkeypatch.setattr(free_memory, "container_bytes", lambda: left)
    assert free_memory.free_bytes() == free
    assert budgets.budget_bytes("auto", None) == int(free * 0.9)


def test_this_machine_has_free_memory():
    assert 2**20 < free_memory.free_bytes() <= psutil.virtual_memory().total
    assert "90 %" in tfgc.plan.__doc__
