"""A small model that has learnt to repeat: random tokens whose period changes from text to text.

Only a head that looks at the token before, and one that looks for what came after the same token, can do it: the
distance tells nothing, since it is another one in each text.
"""

import jaxtyping
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv.models import GPT, GPTConfig

VOCAB, LONGEST = 32, 16


def repeating(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of a start token and a random run repeated, and which of their tokens the run before foretells."""
    run = torch.rand(count, VOCAB - 1, generator=generator).argsort(1)[:, :LONGEST] + 1  # no token twice
    period = torch.randint(LONGEST // 4, LONGEST + 1, (count, 1), generator=generator)
    places = torch.arange(2 * LONGEST)[None]
    tokens = torch.cat((torch.zeros(count, 1, dtype=torch.int64), run.gather(1, places % period)), dim=1)
    return tokens, torch.cat((torch.zeros(count, 1, dtype=torch.bool), places > period), dim=1)


@pytest.fixture(scope="session")
def repeater() -> GPT:
    """Two layers of four heads, trained until it repeats."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = GPT(GPTConfig(vocab=VOCAB, width=64, layers=2, heads=4, hidden=8, position="rope"))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    jaxtyping.config.update("jaxtyping_disable", True)  # shapes are checked in the tests of models
    for _ in range(600):
        tokens, known = repeating(32, generator)
        loss = cross_entropy(model(tokens)[:, :-1][known[:, 1:]], tokens[:, 1:][known[:, 1:]])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.05:
            break
    jaxtyping.config.update("jaxtyping_disable", False)
    assert loss.item() < 0.05, f"the task was not learnt: {loss.item():.3f}"
    return model.eval()
