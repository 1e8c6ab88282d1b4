"""PyTorch's threads: one for small tensors, the setting restored afterwards, and the user's own variables kept."""

import os

import pytest
import torch

from qkv._threads import limit_spinning, one_thread


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_thread_restores_the_number_of_threads_after_an_error(two_threads):
    def fail():
        with one_thread():
            assert torch.get_num_threads() == 1
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7")])
def test_limit_spinning_keeps_the_settings_of_the_user(monkeypatch, name, value):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv(name, value)
    limit_spinning()
    assert os.environ[name] == value
    assert ("GOMP_SPINCOUNT" in os.environ) == (name == "GOMP_SPINCOUNT")
