"""Fixtures of all tests: device, float64 random numbers, seed, run-time shape checks."""

import os
import signal

import jaxtyping
import pytest
import torch

from qkv._onednn import avoid_broken_amx

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts background jobs with SIGINT ignored, and child processes inherit that: tests of Ctrl-C need it back
    signal.signal(signal.SIGINT, signal.default_int_handler)

avoid_broken_amx()
torch.set_num_threads(1)  # tensors here are tiny: threads would only wait for one another


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def device() -> torch.device:
    """QKV_DEVICE, or the CPU."""
    return torch.device(os.environ.get("QKV_DEVICE", "cpu"))


@pytest.fixture
def randn(device):
    """Random numbers in float64 on the device under test."""

    def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype).to(device)

    return draw


@pytest.fixture(autouse=True)
def _without_shape_checks(request):
    """Exact arithmetic and checks call small functions very often: shape checks would take most of their time."""
    folders = {parent.name for parent in request.path.parents}
    if not folders.isdisjoint(("byhand", "check")) and "tests" in folders:
        request.getfixturevalue("unchecked")


@pytest.fixture
def unchecked():
    """Without shape checks at run time, as users have it: our own messages are what is tested."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
