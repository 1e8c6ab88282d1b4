"""A character GPT in nanoGPT's style with its own Dataset, model and loss; qkv trains it and resumes it after a kill.

python nanogpt_style.py text.txt runs/mine 200
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from qkv.training import CheckpointConfig, DatasetBatches, OptimizerConfig, ScheduleConfig, TrainConfig, train

BLOCK, WIDTH, HEADS, LAYERS = 32, 48, 4, 2


class CharDataset(torch.utils.data.Dataset):
    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        index = {character: number for number, character in enumerate(self.characters)}
        self.data = torch.tensor([index[character] for character in text])

    def __len__(self) -> int:
        return (len(self.data) - 1) // BLOCK

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = number * BLOCK
        return self.data[start : start + BLOCK], self.data[start + 1 : start + BLOCK + 1]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.qkv(self.ln1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, vocab_size, bias=False)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.blocks(self.wte(idx) + self.wpe.weight[: idx.shape[1]]))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


if __name__ == "__main__":
    torch.manual_seed(0)
    dataset = CharDataset(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model = GPT(len(dataset.characters))
    config = TrainConfig(
        steps=int(sys.argv[3]),
        optimizer=OptimizerConfig(lr=1e-3),
        schedule=ScheduleConfig(warmup_steps=10),
        checkpoint=CheckpointConfig(log_every=5, checkpoint_every=10),
    )
    result = train(
        model,
        DatasetBatches(dataset, batch_size=16),
        lambda model, batch: model(batch["inputs"], batch["targets"])[1],
        config,
        sys.argv[2],
        tensorboard=True,
    )
    print(f"step {result.step}, checksum {sum(p.double().sum() for p in model.parameters()):.12f}")
