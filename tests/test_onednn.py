"""avoid_broken_amx: a machine that announces AMX and cannot execute it is found by trying, once."""

import os

import pytest

from qkv import _onednn

BREAKS = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def avoid(monkeypatch, tmp_path):
    """avoid_broken_amx on a machine with these flags, whose bfloat16 products do this; the variable it leaves."""

    def call(flags: str, products: str) -> str | None:
        monkeypatch.setattr(_onednn, "processor_flags", lambda: flags)
        monkeypatch.setattr(_onednn, "PRODUCTS", products)
        _onednn.avoid_broken_amx.__wrapped__()
        return os.environ.get(_onednn.VARIABLE)

    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.setenv(_onednn.VARIABLE, "")
    monkeypatch.delenv(_onednn.VARIABLE)
    return call


def test_avoid_broken_amx_limits_onednn_where_a_product_ends_the_process(avoid, caplog):
    assert avoid("flags : avx512f amx_tile amx_bf16", BREAKS) == "AVX512_CORE_FP16"
    assert "cannot execute it" in caplog.text


def test_avoid_broken_amx_leaves_working_amx_and_other_processors_alone(avoid):
    assert avoid("flags : amx_tile", "pass") is None
    assert avoid("flags : avx2", BREAKS) is None


def test_avoid_broken_amx_keeps_what_the_user_has_set(avoid, monkeypatch):
    monkeypatch.setenv(_onednn.VARIABLE, "AVX2")
    assert avoid("flags : amx_tile", BREAKS) == "AVX2"


def test_avoid_broken_amx_tries_once_per_machine(avoid, monkeypatch, tmp_path):
    avoid("flags : amx_tile", BREAKS)
    monkeypatch.delenv(_onednn.VARIABLE)
    monkeypatch.setattr(_onednn.subprocess, "run", lambda *args, **options: pytest.fail("tried again"))
    assert avoid("flags : amx_tile", BREAKS) == "AVX512_CORE_FP16"
    assert [path.read_text() for path in (tmp_path / "amx").iterdir()] == ["fails"]


def test_bfloat16_products_do_not_end_the_process():
    import torch

    a = torch.ones(64, 64, dtype=torch.bfloat16)
    assert torch.equal(torch.nn.functional.linear(a, a), torch.full_like(a, 64))
