"""GPT with several documents packed in one row reads each independently."""

import pytest
import torch
from model_cases import GPTS, VOCAB

from qkv.models import GPT
from qkv.nn import KVCache
from qkv.nn.attention import BLOCK

LENGTHS = (5, 1, 7, 3)


def packed_row(device):
    texts = [torch.randint(0, VOCAB, (1, n), device=device) for n in LENGTHS]
    row = torch.cat((*texts, torch.zeros(1, 2, dtype=torch.long, device=device)), 1)
    numbers = [number for number, n in enumerate(LENGTHS) for _ in range(n)] + [-1, -1]
    return texts, row, torch.tensor([numbers], device=device)


def bare(model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


@pytest.mark.parametrize("name", [n for n, config in GPTS.items() if "location" not in n])
@torch.no_grad()
def test_gpt_packed_documents_equal_each_document_alone(name, device):
    model = bare(GPT(GPTS[name])).to(device)
    texts, row, documents = packed_row(device)
    rows, numbers = row.repeat(2, 1), documents.repeat(2, 1)
    out = model(rows, documents=numbers)[1, : sum(LENGTHS)]
    apart = torch.cat([model(text)[0] for text in texts])
    assert (out - apart).abs().max() < 1e-10


@torch.no_grad()
def test_gpt_packed_documents_longer_than_a_block_are_independent(device):
    model = bare(GPT(GPTS["rope"])).to(device)
    lengths = [BLOCK - 100, 150, 30]
    texts = [torch.randint(0, VOCAB, (1, n), device=device) for n in lengths]
    numbers = torch.tensor([[k for k, n in enumerate(lengths) for _ in range(n)]], device=device)
    out = model(torch.cat(texts, 1), documents=numbers)[0]
    assert (out - torch.cat([model(text)[0] for text in texts])).abs().max() < 1e-10


@torch.no_grad()
def test_gpt_packed_document_numbers_may_be_used_twice(device):
    model = bare(GPT(GPTS["learned"])).to(device)
    text = torch.randint(0, VOCAB, (1, 4), device=device)
    twice = model(text.repeat(1, 3), documents=torch.tensor([[7] * 4 + [2] * 4 + [7] * 4], device=device))
    assert (twice[0, 8:] - model(text)[0]).abs().max() < 1e-10


@pytest.mark.usefixtures("unchecked")
def test_gpt_packed_documents_reject_token_mask_cache_and_location_aware():
    model = GPT(GPTS["learned"])
    _, row, documents = packed_row("cpu")
    with pytest.raises(ValueError, match="no token_mask= and no cache="):
        model(row, documents=documents, cache=KVCache())
    with pytest.raises(ValueError, match="no token_mask= and no cache="):
        model(row, documents=documents, token_mask=documents >= 0)
    with pytest.raises(ValueError, match=r"integers of shape \(batch, tokens\) = \(1, 18\)"):
        model(row, documents=documents[:, 1:])
    with pytest.raises(ValueError, match="location-aware"):
        GPT(GPTS["location-aware"])(row, documents=documents)
