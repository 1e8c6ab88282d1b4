"""Stand-ins for modules of CS224N's starter code that a student need not hand in."""

ATTENTION = '''
import math
import torch
from torch import nn


class CausalCrossAttention(nn.Module):
    """Attention of x_q over x_kv; query i sees keys up to i."""

    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.key, self.query, self.value, self.proj = (nn.Linear(config.n_embd, config.n_embd) for _ in range(4))
        self.drop = nn.Dropout(config.resid_pdrop)

    def forward(self, x_kv, x_q):
        def heads(x):
            return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

        q, k, v = heads(self.query(x_q)), heads(self.key(x_kv)), heads(self.value(x_kv))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(future, -1e10).softmax(-1)
        return self.drop(self.proj((weights @ v).transpose(1, 2).flatten(2)))


class CausalSelfAttention(CausalCrossAttention):
    def forward(self, x):
        return super().forward(x, x)


SynthesizerAttention = CausalSelfAttention
'''
TRAINER = """
class TrainerConfig:
    max_epochs, batch_size, learning_rate, lr_decay = 10, 64, 3e-4, False
    betas, grad_norm_clip, weight_decay = (0.9, 0.95), 1.0, 0.1
    warmup_tokens, final_tokens, ckpt_path, num_workers, writer = 375e6, 260e9, None, 0, None

    def __init__(self, **kwargs):
        for name, value in kwargs.items():
            setattr(self, name, value)


class Trainer:
    def __init__(self, model, train_dataset, test_dataset, config):
        self.model, self.train_dataset, self.test_dataset, self.config = model, train_dataset, test_dataset, config

    def train(self, *args, **kwargs):
        pass
"""
MODEL = """
from torch import nn


class GPTConfig:
    def __init__(self, vocab_size, block_size, **kwargs):
        self.vocab_size, self.block_size = vocab_size, block_size
        for name, value in kwargs.items():
            setattr(self, name, value)


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head = nn.Linear(4, 4)
"""
DATASET = """
class NameDataset:
    def __init__(self, *args, **kwargs):
        self.args = (*args, *kwargs.values())


class CharCorruptionDataset(NameDataset):
    pass
"""
STUBS = {"attention": ATTENTION, "trainer": TRAINER, "model": MODEL, "dataset": DATASET, "utils": ""}
