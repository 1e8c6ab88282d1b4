"""The machine: processor, memory, and measured speed of matrix products and memory reads."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

from qkv._onednn import avoid_broken_amx

ROUNDS, FASTER = 5, 1.2
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class MatrixSpeed:
    """The speed of matrix products in one dtype: 10⁹ operations a second, best of several, for square matrices.

    rounds: the speed in each round. The dtypes take turns, so that other work on the machine slows all of them.
    """

    dtype: str
    gigaflops: float
    size: int
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The hardware and software that computations run on here."""

    python: str
    torch: str
    device: str
    processor: str
    cores: int
    threads: int
    memory_gib: float
    speeds: list[MatrixSpeed]

    @property
    def best_dtype(self) -> str:
        """The dtype to train in: bfloat16 if in every round it is 20 % faster than the fastest round of float32."""
        return "bfloat16" if self._compare()[0] > FASTER else "float32"

    @property
    def is_certain(self) -> bool:
        """Whether all rounds agree on `best_dtype`."""
        lowest, highest = self._compare()
        return lowest > FASTER or highest <= FASTER

    def _compare(self) -> tuple[float, float]:
        """The speed of bfloat16 divided by that of float32: the lowest and the highest that the rounds allow."""
        known = {speed.dtype: speed.rounds or (speed.gigaflops,) for speed in self.speeds}
        fast, usual = known.get("bfloat16", (0.0,)), known.get("float32", (1.0,))
        return min(fast) / max(usual), max(fast) / min(usual)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "best_dtype": self.best_dtype, "is_certain": self.is_certain}


def measure_machine(device: torch.device, on_note: Callable[[str], None] = lambda _: None) -> Machine:
    """Describe the machine and measure its speed; `on_note` gets a line about what is being measured."""
    avoid_broken_amx()
    rounds: dict[str, list[MatrixSpeed]] = {}
    for index in range(ROUNDS):
        for name in DTYPES:
            on_note(f"measuring {name}, round {index + 1} of {ROUNDS}")
            speed = matrix_speed(getattr(torch, name), device, seconds=0.4 / ROUNDS)
            if speed is not None:
                rounds.setdefault(name, []).append(speed)
    speeds = [
        replace(max(each, key=lambda speed: speed.gigaflops), rounds=tuple(speed.gigaflops for speed in each))
        for each in rounds.values()
    ]
    return Machine(
        python=platform.python_version(),
        torch=torch.__version__,
        device=str(device),
        processor=_processor_name(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_gib=round(_total_memory() / 2**30, 1),
        speeds=speeds,
    )


def matrix_speed(dtype: torch.dtype, device: torch.device, *, seconds: float = 0.4) -> MatrixSpeed | None:
    """The speed of a matrix product large enough to time; None if the device does not support the dtype."""
    size, best = 64, 0.0
    try:
        _time_product(size, dtype, device)  # the first call loads the library
        while True:
            took = _time_product(size, dtype, device)
            if took > seconds / 20 or size >= 4096:
                break
            size *= 2
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            took = min(took, _time_product(size, dtype, device))
        best = 2 * size**3 / took / 1e9
    except (RuntimeError, TypeError):  # this device has no kernel for the dtype
        return None
    return MatrixSpeed(str(dtype).removeprefix("torch."), max(round(best, 1), 0.1), size)


def default_device() -> torch.device:
    """The accelerator if there is one, otherwise the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _time_product(size: int, dtype: torch.dtype, device: torch.device) -> float:
    a, b = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(2))
    _synchronize(device)
    start = time.perf_counter()
    _ = a @ b
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: torch.device) -> None:
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


def _total_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _processor_name() -> str:
    """The processor's name, if the system reports it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return names[0] if names else platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def describe_for_report() -> dict[str, object]:
    """The machine for a benchmark report: without host names, with measured peak and bandwidth."""
    return {**describe_hardware(), "peak_gigaflops": peak_gigaflops(), "bandwidth": round(memory_bandwidth() / 1e9, 1)}


def describe_hardware() -> dict[str, object]:
    """Hardware and versions; nothing is measured."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor_name(),
        "instructions": _vector_instructions(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "memory_gib": round(_total_memory() / 2**30, 1),
    }


def peak_gigaflops(seconds: float = 1.0) -> float:
    """The speed of a large float32 matrix product with the threads in use, best of several."""
    speed = matrix_speed(torch.float32, torch.device("cpu"), seconds=seconds)
    return 0.0 if speed is None else speed.gigaflops


def memory_bandwidth(size: int = 2**28, seconds: float = 0.6) -> float:
    """Bytes read a second by a sum over `size` bytes, too many for any cache; best of several."""
    numbers = torch.ones(size // 4)
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        start = time.perf_counter()
        numbers.sum()
        best = min(best, time.perf_counter() - start)
    return size / best


def _vector_instructions() -> list[str]:
    """The processor's vector instructions, if the system reports them."""
    known = ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "asimd", "sve")
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    except OSError:
        return []
    return [name for name in known if name in flags]
