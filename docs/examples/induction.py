"""A small model learns to repeat, in seconds, and is looked into: python docs/examples/induction.py [FOLDER]

Random tokens whose period changes from text to text: the distance tells nothing, so the model must find the token it is
at earlier in the text, and what came after it there. That takes two heads, one after the other.
"""

import sys

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv import interp as look
from qkv.models import GPT, GPTConfig

VOCAB, LONGEST = 32, 16


def repeating(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of a start token and a random run repeated, and which of their tokens the run before foretells."""
    run = torch.rand(count, VOCAB - 1, generator=generator).argsort(1)[:, :LONGEST] + 1  # no token twice
    period = torch.randint(LONGEST // 4, LONGEST + 1, (count, 1), generator=generator)
    places = torch.arange(2 * LONGEST)[None]
    tokens = torch.cat((torch.zeros(count, 1, dtype=torch.int64), run.gather(1, places % period)), dim=1)
    return tokens, torch.cat((torch.zeros(count, 1, dtype=torch.bool), places > period), dim=1)


def trained(seed: int = 0, steps: int = 600) -> tuple[GPT, float]:
    """Two layers of four heads, trained until the loss on what is foretold is below 0.05, and that loss."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=VOCAB, dim=64, layers=2, heads=4, mlp_dim=8, position="rope"))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    loss = torch.tensor(float("inf"))
    for _ in range(steps):
        tokens, known = repeating(32, generator)
        loss = cross_entropy(model(tokens)[:, :-1][known[:, 1:]], tokens[:, 1:][known[:, 1:]])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if loss.item() < 0.05:
            break
    return model.eval(), loss.item()


def main() -> None:
    model, loss = trained()
    tokens, known = repeating(1, torch.Generator().manual_seed(8))
    repeats = [place - 1 for place in known[0].nonzero().flatten().tolist()]  # where the next token is foretold
    print(f"{model.num_parameters:,} parameters, loss {loss:.3f} on tokens that the text foretells\n")
    found = look.heads(model, tokens)
    costs = look.sweep(model, tokens, positions=repeats)
    print("head  called      score  cost of silencing it")
    for head in found.heads:
        cost = costs.table[head.layer][head.head]
        print(f"{head.layer}.{head.head}   {head.kind:<10}  {head.score:5.2f}  {cost:8.3f}")
    lens = look.lens(model, tokens, k=1, positions=repeats)
    print("\nthe logit lens: what the model would answer if it ended after each block")
    for name, chosen, chance in zip(lens.names, lens.tokens, lens.probabilities, strict=True):
        right = chosen[:, 0] == tokens[0, [place + 1 for place in repeats]]
        print(f"{name:<9} right {right.float().mean():4.0%}, probability of the likeliest {chance[:, 0].mean():.2f}")
    best = found.of("induction")[0]
    cut = look.effect(model, tokens, beta={(best.layer, best.head): 0.0}, positions=repeats)
    print(f"\nβ of head {best.layer}.{best.head} at 0: loss {cut.loss_before:.3f} → {cut.loss_after:.3f}")
    if len(sys.argv) > 1:
        model.save(sys.argv[1])
        print(f"saved in {sys.argv[1]}; its tokens are numbers: {' '.join(map(str, tokens[0].tolist()))}")


if __name__ == "__main__":
    main()
