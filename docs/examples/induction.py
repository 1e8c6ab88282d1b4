"""Train a small model to repeat, in seconds, and find its induction heads: python induction.py [FOLDER]

The texts are random tokens repeated with a period that changes from text to text. Distance tells nothing, so the model
must find its current token earlier in the text, and what came after it there. That takes two heads in sequence.
"""

import sys

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from qkv import interp
from qkv.models import GPT, GPTConfig

VOCAB_SIZE, LONGEST = 32, 16


def make_repeating_texts(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of a start token and a repeated random run, and which of their tokens can be predicted from the text."""
    run = torch.rand(count, VOCAB_SIZE - 1, generator=generator).argsort(1)[:, :LONGEST] + 1  # no token twice
    period = torch.randint(LONGEST // 4, LONGEST + 1, (count, 1), generator=generator)
    positions = torch.arange(2 * LONGEST)[None]
    tokens = torch.cat((torch.zeros(count, 1, dtype=torch.int64), run.gather(1, positions % period)), dim=1)
    return tokens, torch.cat((torch.zeros(count, 1, dtype=torch.bool), positions > period), dim=1)


def train_model(seed: int = 0, steps: int = 600) -> tuple[GPT, float]:
    """Train two layers of four heads until the loss on predictable tokens is below 0.05; return model and loss."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=VOCAB_SIZE, dim=64, layers=2, heads=4, mlp_dim=8, position="rope"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    loss = torch.tensor(float("inf"))
    for _ in range(steps):
        tokens, known = make_repeating_texts(32, generator)
        loss = cross_entropy(model(tokens)[:, :-1][known[:, 1:]], tokens[:, 1:][known[:, 1:]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.05:
            break
    return model.eval(), loss.item()


def main() -> None:
    model, loss = train_model()
    tokens, known = make_repeating_texts(1, torch.Generator().manual_seed(8))
    predictable = [index - 1 for index in known[0].nonzero().flatten().tolist()]  # where the next token is known
    print(f"{model.num_parameters:,} parameters, loss {loss:.3f} on predictable tokens\n")
    found = interp.classify_heads(model, tokens)
    sweep = interp.ablation_sweep(model, tokens, positions=predictable)
    print("head  type            score  cost of ablating it")
    for head in found.heads:
        cost = sweep.table[head.layer][head.head]
        print(f"{head.layer}.{head.head}   {head.type:<14}  {head.score:5.2f}  {cost:8.3f}")
    lens = interp.logit_lens(model, tokens, k=1, positions=predictable)
    print("\nlogit lens: the prediction if the model ended after each block")
    for name, chosen, probability in zip(lens.names, lens.tokens, lens.probabilities, strict=True):
        right = chosen[:, 0] == tokens[0, [position + 1 for position in predictable]]
        print(f"{name:<9} right {right.float().mean():4.0%}, top probability {probability[:, 0].mean():.2f}")
    best = found.of_type("induction")[0]
    effect = interp.measure_effect(model, tokens, scale={(best.layer, best.head): 0.0}, positions=predictable)
    print(f"\nscale of head {best.layer}.{best.head} set to 0: loss {effect.loss_before:.3f} → {effect.loss_after:.3f}")
    if len(sys.argv) > 1:
        model.save(sys.argv[1])
        print(f"saved in {sys.argv[1]}; its tokens are ids: {' '.join(map(str, tokens[0].tolist()))}")


if __name__ == "__main__":
    main()
