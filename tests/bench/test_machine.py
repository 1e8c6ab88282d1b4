"""Machine: which dtype `qkv doctor` recommends."""

from qkv.bench.machine import Machine, MatrixSpeed


def machine_with(**rounds):
    speeds = [MatrixSpeed(dtype, float(max(each)), 512, tuple(map(float, each))) for dtype, each in rounds.items()]
    return Machine("3.11", "2.13", "cpu", "a processor", 2, 2, 8.0, speeds)


def test_best_dtype_needs_bfloat16_to_be_faster_in_every_round():
    fast = machine_with(float32=[100, 110], bfloat16=[180, 200])
    assert (fast.best_dtype, fast.is_certain) == ("bfloat16", True)
    noisy = machine_with(float32=[100, 30], bfloat16=[90, 95])  # float32 was measured beside other work once
    assert (noisy.best_dtype, noisy.is_certain) == ("float32", False)
    slow = machine_with(float32=[100, 110], bfloat16=[0.2, 0.3])
    assert (slow.best_dtype, slow.is_certain) == ("float32", True)
