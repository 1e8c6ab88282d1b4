"""Right solutions of the course rubrics in several styles, and usual mistakes: replaced text, replacement, lost properties."""

# ruff: noqa: E501

CAUSAL_STYLES = {
    "fused, SDPA": """
import torch.nn.functional as F
from torch import nn

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.qkv_weights = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.mix = nn.Linear(config.n_embd, config.n_embd)
        self.heads = config.n_head

    def forward(self, x, layer_past=None):
        b, t, c = x.shape
        parts = self.qkv_weights(x).chunk(3, dim=-1)
        q, k, v = [part.unflatten(-1, (self.heads, -1)).movedim(1, 2) for part in parts]
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(out.movedim(1, 2).flatten(2))
""",
    "einops, weights returned": """
import torch
from einops import einsum, rearrange
from torch import nn

class CausalSelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.h = cfg.n_head
        self.to_qkv = nn.Linear(cfg.n_embd, 3 * cfg.n_embd, bias=False)
        self.to_out = nn.Sequential(nn.Linear(cfg.n_embd, cfg.n_embd), nn.Dropout(cfg.resid_pdrop))

    def forward(self, x):
        q, k, v = rearrange(self.to_qkv(x), "b t (h three d) -> three b h t d", h=self.h, three=3)
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * q.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, torch.finfo(scores.dtype).min).softmax(-1)
        return self.to_out(rearrange(weights @ v, "b h t d -> b t (h d)")), weights
""",
    "nn.MultiheadAttention, arguments": """
import torch
from torch import nn

class CausalSelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)

    def forward(self, x):
        later = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device), diagonal=1)
        return self.inner(x, x, x, attn_mask=later, need_weights=False)[0]
""",
    "a list of heads": """
import math
import torch
from torch import nn

class Head(nn.Module):
    def __init__(self, dim, head_dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, head_dim, bias=False) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT / math.sqrt(self.q.out_features)
        seen = torch.ones_like(scores, dtype=torch.bool).tril()
        return torch.where(seen, scores, float("-inf")).softmax(-1) @ self.v(x)

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = nn.ModuleList(Head(config.n_embd, config.n_embd // config.n_head) for _ in range(config.n_head))
        self.last = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        return self.last(torch.cat([head(x) for head in self.heads], -1))
""",
}

SYNTHESIZER_STYLES = {
    "linear layers": """
import torch
from torch import nn

class SynthesizerAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first, self.values, self.last = (nn.Linear(config.n_embd, config.n_embd) for _ in range(3))
        self.second = nn.Linear(config.n_embd // config.n_head, config.block_size - 1)
        self.h = config.n_head

    def forward(self, x, layer_past=None):
        t = x.shape[1]
        hidden = self.first(x).relu().unflatten(-1, (self.h, -1)).transpose(1, 2)
        scores = self.second(hidden)[..., :t]
        seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        weights = torch.where(seen, scores, torch.full_like(scores, -1e10)).softmax(-1)
        v = self.values(x).unflatten(-1, (self.h, -1))
        return self.last(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))
""",
}

CORRUPTION = """
import random
import torch
from torch.utils.data import Dataset

class CharCorruptionDataset(Dataset):
    def __init__(self, data, block_size):
        self.PAD_CHAR, self.MASK_CHAR = "\\u25a1", "\\u2047"
        letters = [self.PAD_CHAR, self.MASK_CHAR] + sorted(set(data))
        self.itos = dict(enumerate(letters))
        self.stoi = {letter: index for index, letter in self.itos.items()}
        self.vocab_size, self.block_size = len(letters), block_size
        self.data = data.split("\\n")

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx):
        text = self.data[idx][: random.randint(4, int(self.block_size * 7 / 8))]
        size = random.randint(1, max(1, len(text) // 2 - 1))
        begin = random.randint(0, len(text) - size)
        end = begin + size
        out = text[:begin] + self.MASK_CHAR + text[end:] + self.MASK_CHAR + text[begin:end]
        out = out.ljust(self.block_size, self.PAD_CHAR)
        codes = torch.tensor([self.stoi[letter] for letter in out], dtype=torch.long)
        return codes[:-1], codes[1:]
"""
CORRUPTION_STYLES = {
    "course": CORRUPTION,
    "a third mask sign, block_size entries": CORRUPTION.replace(
        "text[begin:end]\n", "text[begin:end] + self.MASK_CHAR\n"
    ).replace("ljust(self.block_size,", "ljust(self.block_size + 1,"),
    "Gaussian span": CORRUPTION.replace(
        "random.randint(1, max(1, len(text) // 2 - 1))",
        "min(len(text), max(1, round(random.gauss(len(text) / 4, len(text) / 10))))",
    ),
}
CORRUPTION_WRONG = {
    "y is x": (("codes[:-1], codes[1:]", "codes[:-1], codes[:-1]"), {"y is x shifted by one"}),
    "shifted the wrong way": (("codes[:-1], codes[1:]", "codes[1:], codes[:-1]"), {"y is x shifted by one"}),
    "no padding": (("out = out.ljust(self.block_size, self.PAD_CHAR)", ""), {"Long tensors of the right length"}),
    "floats": (("dtype=torch.long", "dtype=torch.float"), {"Long tensors of the right length"}),
    "mask sign first": (("[self.PAD_CHAR, self.MASK_CHAR] +", "[self.MASK_CHAR, self.PAD_CHAR] +"), {"vocabulary"}),
    "not sorted": (("sorted(set(data))", "sorted(set(data), reverse=True)"), {"vocabulary"}),
    "never cut": (("random.randint(4, int(self.block_size * 7 / 8))", "int(self.block_size * 7 / 8)"), {"cut"}),
    "three quarters": (("block_size * 7 / 8", "block_size * 3 / 4"), {"cut"}),
    "no second sign": (("text[end:] + self.MASK_CHAR + text[begin:end]", "text[end:] + text[begin:end]"), {"form"}),
    "only masked": (("text[end:] + self.MASK_CHAR + text[begin:end]", "text[end:]"), {"form", "content in order"}),
    "half is masked": (("random.randint(1, max(1, len(text) // 2 - 1))", "max(1, len(text) // 2)"), {"about a quarter"}),
    "always a quarter": (("random.randint(1, max(1, len(text) // 2 - 1))", "max(1, len(text) // 4)"), {"about a quarter"}),
    "always at the start": (("random.randint(0, len(text) - size)", "0"), {"random span"}),
    "the same every time": (("        text = self", "        random.seed(idx)\n        text = self"), {"random span"}),
    "masked in the middle": (("self.MASK_CHAR + text[end:] + self.MASK_CHAR + text[begin:end]", "self.MASK_CHAR + text[begin:end] + self.MASK_CHAR + text[end:]"), {"content in order"}),
    "padding before": (("out.ljust(", "out.rjust("), {"form"}),
    "padded with the mask sign": (("ljust(self.block_size, self.PAD_CHAR)", "ljust(self.block_size, self.MASK_CHAR)"), {"form"}),
    "no first sign": (("text[:begin] + self.MASK_CHAR + text[end:] + self.MASK_CHAR + text[begin:end]", "text[:begin] + text[end:] + self.MASK_CHAR + text[begin:end] + self.MASK_CHAR"), {"form"}),
    "a lost character": (("self.MASK_CHAR + text[end:]", "self.MASK_CHAR + text[end + 1:]"), {"content in order"}),
    "not cut": (("[: random.randint(4, int(self.block_size * 7 / 8))]", ""), {"cut"}),
    "a sign at the end only": (("text[end:] + self.MASK_CHAR + text[begin:end]", "text[end:] + text[begin:end] + self.MASK_CHAR"), {"form"}),
    "no suffix": (("self.MASK_CHAR + text[end:] + self", "self.MASK_CHAR + self"), {"content in order"}),
    "no span at the end": (("text[end:] + self.MASK_CHAR + text[begin:end]", "text[end:] + self.MASK_CHAR"), {"content in order"}),
}  # fmt: skip

NAMES = """
import torch
from torch.utils.data import Dataset

class NameDataset(Dataset):
    def __init__(self, pretraining_dataset, data):
        self.stoi, self.itos = pretraining_dataset.stoi, pretraining_dataset.itos
        self.block_size = pretraining_dataset.block_size
        self.pairs = [line.split("\\t") for line in data.splitlines() if line]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        question, answer = self.pairs[index]
        text = question + "\\u2047" + answer + "\\u2047"
        text = text.ljust(self.block_size, "\\u25a1")
        target = "\\u25a1" * (len(question) - 1) + text[len(question):]
        return self.encode(text[:-1]), self.encode(target)

    def encode(self, text):
        return torch.tensor([self.stoi[letter] for letter in text], dtype=torch.long)
"""
NAMES_STYLES = {
    "course": NAMES,
    "arguments swapped": NAMES.replace("pretraining_dataset, data)", "data, pretraining_dataset)"),
    "block_size entries": NAMES.replace("ljust(self.block_size,", "ljust(self.block_size + 1,"),
}
NAMES_WRONG = {
    "question scored": (('"\\u25a1" * (len(question) - 1) + text[len(question):]', "text[1:]"), {"y: the question is not scored"}),
    "not shifted": (('(len(question) - 1) + text[len(question):]', "len(question) + text[len(question):-1]"), {"y: the answer, aligned"}),
    "one item too many": (("return len(self.pairs)", "return len(self.pairs) + 1"), {"number of items"}),
    "no sign at the end": (('answer + "\\u2047"', "answer"), {"x: question ⁇ answer ⁇"}),
    "no sign before the answer": (('question + "\\u2047" + answer', "question + answer"), {"x: question ⁇ answer ⁇"}),
    "x too long": (("self.encode(text[:-1])", "self.encode(text)"), {"Long tensors of the right length"}),
    "floats": (("dtype=torch.long", "dtype=torch.float"), {"Long tensors of the right length"}),
    "its own vocabulary": (("self.stoi, self.itos = pretraining_dataset.stoi, pretraining_dataset.itos", 'self.stoi = {c: i for i, c in enumerate(["\\u25a1", "\\u2047"] + sorted(set(data)))}'), {"x: question ⁇ answer ⁇"}),
    "answer first": (("question, answer = self.pairs[index]", "answer, question = self.pairs[index]"), {"x: question ⁇ answer ⁇"}),
    "split at a space": (('line.split("\\t")', 'line.split(" ", 1)'), {"x: question ⁇ answer ⁇"}),
}  # fmt: skip

ROTARY = """
import torch

def precompute_rotary_emb(dim, max_positions):
    frequency = 10000.0 ** (-torch.arange(0, dim, 2) / dim)
    angle = torch.outer(torch.arange(max_positions).to(frequency), frequency)
    return torch.stack((angle.cos(), angle.sin()), dim=-1)

def apply_rotary_emb(x, rope_cache):
    cache = rope_cache[: x.shape[-2]].to(x)
    cos, sin = cache[..., 0], cache[..., 1]
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
"""
ROTARY_STYLES = {
    "course": ROTARY,
    "complex numbers": """
import torch

def precompute_rotary_emb(dim, max_positions):
    theta = torch.tensor([10000 ** (-2 * i / dim) for i in range(dim // 2)])
    angle = torch.arange(max_positions)[:, None] * theta[None]
    return torch.view_as_real(torch.polar(torch.ones_like(angle), angle))

def apply_rotary_emb(x, rope_cache):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turn = torch.view_as_complex(rope_cache.float().contiguous())[: x.shape[2]]
    return torch.view_as_real(pairs * turn).reshape(x.shape).type_as(x)
""",
    "in place, sequence length first": ROTARY.replace(
        "    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)",
        "    out = torch.empty_like(x)\n    out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin\n    return out",
    ),
}
ROTARY_WRONG = {
    "not cut": (("rope_cache[: x.shape[-2]]", "rope_cache"), {"shorter sequences"}),
    "the other way": (("a * cos - b * sin, b * cos + a * sin", "a * cos + b * sin, b * cos - a * sin"), {"equals the formula"}),
    "positions from 1": (("torch.arange(max_positions)", "torch.arange(1, max_positions + 1)"), {"cache: cos and sin"}),
    "half the exponent": (("torch.arange(0, dim, 2) / dim", "torch.arange(dim // 2) / dim"), {"cache: cos and sin"}),
    "sin first": (("angle.cos(), angle.sin()", "angle.sin(), angle.cos()"), {"cache: cos and sin"}),
    "wrong axis": (("angle.sin()), dim=-1)", "angle.sin()), dim=0)"), {"cache: shape", "cache: cos and sin"}),
    "halves": (("a, b = x[..., 0::2], x[..., 1::2]\n    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)", "a, b = x.chunk(2, -1)\n    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)"), {"equals the formula"}),
    "not put back": (("torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)", "torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)"), {"a rotation", "equals the formula"}),
    "no rotation": (("b * cos + a * sin", "b * cos - a * sin"), {"a rotation", "relative positions", "equals the formula"}),
    "another term": (("b * cos + a * sin", "a * cos + b * sin"), {"a rotation", "relative positions", "equals the formula"}),
    "heads for positions": (("rope_cache[: x.shape[-2]].to(x)", "rope_cache[: x.shape[1]].to(x)[:, None]"), {"relative positions", "equals the formula"}),
    "not flattened": ((".flatten(-2)", ""), {"shape"}),
    "another base": (("10000.0 **", "1000.0 **"), {"cache: cos and sin"}),
    "no return": (("    return torch.stack((angle.cos()", "    torch.stack((angle.cos()"), {"cache: shape", "cache: cos and sin"}),
    "rotated twice": (("b * cos + a * sin", "b * cos + (a * cos - b * sin) * sin"), {"a rotation", "relative positions", "equals the formula"}),
    "nothing rotated": (("    a, b =", "    return x\n    a, b ="), {"a rotation", "relative positions", "equals the formula"}),
}  # fmt: skip

PERCEIVER = """
import torch
from torch import nn
import attention

class DownProjectBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = config.n_embd
        self.C = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, config.bottleneck_dim, c)))
        self.norm_q, self.norm_mlp = nn.LayerNorm(c), nn.LayerNorm(c)
        self.cross = attention.CausalCrossAttention(config)
        self.ff = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c), nn.Dropout(config.resid_pdrop))

    def forward(self, x_input):
        z = self.C + self.cross(x_input, self.norm_q(self.C))
        return z + self.ff(self.norm_mlp(z))

class UpProjectBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = config.n_embd
        self.norm_y, self.norm_mlp = nn.LayerNorm(c), nn.LayerNorm(c)
        self.cross = attention.CausalCrossAttention(config)
        self.ff = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c), nn.Dropout(config.resid_pdrop))

    def forward(self, y, x_input):
        out = x_input + self.cross(self.norm_y(y), x_input)
        return out + self.ff(self.norm_mlp(out))
"""
PERCEIVER_STYLES = {
    "course": PERCEIVER,
    "input normalized, too": PERCEIVER.replace("self.cross(x_input, self", "self.cross(self.norm_q(x_input), self"),
    "expanded, its own attention": """
import torch
from torch import nn

class Cross(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.mha = nn.MultiheadAttention(config.n_embd, config.n_head, dropout=config.attn_pdrop, batch_first=True)

    def forward(self, kv, q):
        return self.mha(q, kv, kv, need_weights=False)[0]

class Base(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.a, self.up, self.down = Cross(config), nn.Linear(config.n_embd, 128), nn.Linear(128, config.n_embd)

    def mlp(self, x):
        return x + self.down(torch.relu(self.up(self.n2(x))))

class DownProjectBlock(Base):
    def __init__(self, config):
        super().__init__(config)
        self.basis = nn.Parameter(torch.randn(config.bottleneck_dim, config.n_embd))

    def forward(self, x_input):
        c = self.basis.expand(x_input.shape[0], -1, -1)
        return self.mlp(c + self.a(x_input, self.n1(c)))

class UpProjectBlock(Base):
    def forward(self, y, x_input):
        return self.mlp(x_input + self.a(self.n1(y), x_input))
""",
}
PERCEIVER_WRONG = {
    "no residual in down": (("z = self.C + self.cross(", "z = self.cross("), {"down: residual connections"}),
    "no residual around the MLP": (("return z + self.ff(", "return self.ff("), {"down: residual connections"}),
    "C no parameter": (("nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, config.bottleneck_dim, c)))", "torch.randn(1, config.bottleneck_dim, c)"), {"down: learned vectors C"}),
    "C not normalized": (("self.norm_q(self.C)", "self.C"), {"down: layer norms, MLP"}),
    "MLP not normalized": (("self.ff(self.norm_mlp(z))", "self.ff(z)"), {"down: layer norms, MLP"}),
    "no MLP": (("return z + self.ff(self.norm_mlp(z))", "return z"), {"down: layer norms, MLP"}),
    "C of the block size": (("config.bottleneck_dim, c", "config.block_size, c"), {"down: learned vectors C"}),
    "post-norm": (("z = self.C + self.cross(x_input, self.norm_q(self.C))\n        return z + self.ff(self.norm_mlp(z))", "z = self.norm_q(self.C + self.cross(x_input, self.C))\n        return self.norm_mlp(z + self.ff(z))"), {"down: layer norms, MLP"}),
    "tokens in place of C": (("z = self.C + self.cross(x_input, self.norm_q(self.C))", "c = x_input[:, : self.C.shape[1]]\n        z = c + self.cross(x_input, self.norm_q(c))"), {"down: learned vectors C"}),
    "attention to C only": (("self.cross(x_input, self", "self.cross(self.C, self"), None),
    "up attends to itself": (("self.cross(self.norm_y(y), x_input)", "self.cross(x_input, x_input)"), {"up: reads both"}),
    "no residual in up": (("out = x_input + self.cross(", "out = self.cross("), {"up: residual connections"}),
    "y not normalized": (("self.norm_y(y)", "y"), {"up: layer norms, MLP"}),
    "up swapped": (("self.cross(self.norm_y(y), x_input)", "self.cross(x_input, self.norm_y(y))"), {"up: shape", "up: reads both", "up: residual connections", "up: layer norms, MLP", "independent rows"}),
}  # fmt: skip

FINETUNING = """
import torch
from .dataset import NameDataset
from .model import GPT
from .trainer import Trainer, TrainerConfig

def settings(dataset, block_size, **more):
    return TrainerConfig(lr_decay=True, warmup_tokens=512 * 20, final_tokens=200 * len(dataset) * block_size, **more)

def finetune(reading_params_path, finetune_corpus_path, pretrain_dataset, block_size, model, finetune_lr=6e-4, writer=None):
    epochs = 75
    if reading_params_path is not None:
        model.load_state_dict(torch.load(reading_params_path, map_location="cpu", weights_only=True))
        epochs = 10
    with open(finetune_corpus_path, encoding="utf-8") as file:
        questions = NameDataset(pretrain_dataset, file.read())
    tconf = settings(pretrain_dataset, block_size, max_epochs=epochs, batch_size=256, learning_rate=finetune_lr)
    return tconf, Trainer(model, questions, None, tconf)

def pretrain(pretrain_dataset, block_size, model, pretrain_lr=6e-3, writer=None):
    tconf = settings(pretrain_dataset, block_size, max_epochs=650, batch_size=128, learning_rate=pretrain_lr)
    return tconf, Trainer(model, pretrain_dataset, None, tconf)

def train(model, writing_params_path, trainer_obj):
    trainer_obj.train()
    torch.save(model.state_dict(), writing_params_path)
"""
FINETUNING_STYLES = {
    "course": FINETUNING,
    "absolute imports": FINETUNING.replace("from .", "from "),
    "a file of the course that is not there": f"import models, helper\nfrom models.gpt import GPT2\n{FINETUNING}",
    "attributes set one by one": FINETUNING.replace(
        "settings(pretrain_dataset, block_size, max_epochs=epochs, batch_size=256, learning_rate=finetune_lr)",
        "settings(pretrain_dataset, block_size)\n    tconf.max_epochs, tconf.batch_size, tconf.learning_rate = epochs, 256, 0.0006",
    ).replace("NameDataset(pretrain_dataset, file.read())", "NameDataset(data=file.read(), pretraining_dataset=pretrain_dataset)"),
}  # fmt: skip
FINETUNING_WRONG = {
    "returned in the other order": (("return tconf, Trainer(model, questions, None, tconf)", "return Trainer(model, questions, None, tconf), tconf"), {"returns config and trainer"}),
    "nothing loaded": (('model.load_state_dict(torch.load(reading_params_path, map_location="cpu", weights_only=True))', "pass"), {"loads pretrained parameters"}),
    "pretraining data": (("Trainer(model, questions,", "Trainer(model, pretrain_dataset,"), {"trains on the questions"}),
    "the path as text": (("file.read()", "finetune_corpus_path"), {"trains on the questions"}),
    "same epochs": (("        epochs = 10\n", ""), {"epochs"}),
    "other learning rate": (("learning_rate=finetune_lr", "learning_rate=6e-3"), {"hyperparameters"}),
    "other batch size": (("batch_size=256", "batch_size=64"), {"hyperparameters"}),
    "no decay": (("lr_decay=True", "lr_decay=False"), {"hyperparameters", "pretraining"}),
    "pretraining too short": (("max_epochs=650", "max_epochs=65"), {"pretraining"}),
    "saved too early": (("    trainer_obj.train()\n    torch.save(model.state_dict(), writing_params_path)", "    torch.save(model.state_dict(), writing_params_path)\n    trainer_obj.train()"), {"trains, then saves"}),
    "never trained": (("    trainer_obj.train()\n", ""), {"trains, then saves"}),
    "trainer without config": (("return tconf, Trainer(model, questions, None, tconf)", "return tconf, Trainer(model, questions, None, TrainerConfig())"), {"returns config and trainer"}),
    "nothing returned": (("return tconf, Trainer(model, questions, None, tconf)", "Trainer(model, questions, None, tconf).train()"), {"returns config and trainer"}),
    "another model": (("return tconf, Trainer(model, questions,", "import copy\n    return tconf, Trainer(copy.deepcopy(model), questions,"), {"returns config and trainer"}),
    "loads without a path": (("    if reading_params_path is not None:\n", "    if True:\n"), {"loads pretrained parameters"}),
}  # fmt: skip

EVALUATION = """
import torch

def evaluate_places(filepath, predicted_places):
    with open(filepath, encoding="utf-8") as file:
        rows = [line.rstrip("\\n").split("\\t") for line in file]
    if len(rows[0]) < 2:
        return 0.0, 0.0
    right = sum(row[1] == guess for row, guess in zip(rows, predicted_places))
    return float(len(rows)), float(right)

@torch.no_grad()
def sample(model, x, steps, temperature=1.0, sample=False, top_k=None):
    model.eval()
    longest = model.get_block_size()
    for _ in range(steps):
        logits = model(x[:, -longest:])[0][:, -1] / temperature
        if top_k is not None:
            least = logits.topk(top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        new = torch.multinomial(logits.softmax(-1), 1) if sample else logits.argmax(-1, keepdim=True)
        x = torch.cat([x, new], dim=1)
    return x
"""
EVALUATION_STYLES = {
    "course": EVALUATION,
    "a loop": EVALUATION.replace(
        "    right = sum(row[1] == guess for row, guess in zip(rows, predicted_places))\n",
        "    right = 0\n    for i in range(len(rows)):\n        if rows[i][1].strip() == predicted_places[i].strip():\n            right += 1\n",
    ),
    "inference mode": EVALUATION.replace("@torch.no_grad()", "@torch.inference_mode()"),
}
EVALUATION_WRONG = {
    "the first tokens": (("x[:, -longest:]", "x[:, :longest]"), {"sample: block size"}),
    "always sampled": (("if sample else logits.argmax(-1, keepdim=True)", "if True else None"), {"sample: greedy"}),
    "a share": (("float(right)", "right / len(rows)"), {"counts right answers"}),
    "swapped": (("return float(len(rows)), float(right)", "return float(right), float(len(rows))"), {"counts every line", "counts right answers"}),
    "case ignored": (("row[1] == guess", "row[1].lower() == guess.lower()"), {"exact match"}),
    "part of the name": (("row[1] == guess", "row[1] in guess"), {"exact match"}),
    "no places not handled": (("    if len(rows[0]) < 2:\n        return 0.0, 0.0\n", ""), {"files without places"}),
    "newline kept": (('line.rstrip("\\n").split', "line.split"), {"counts right answers"}),
    "one line lost": (("for line in file]", "for line in file][:-1]"), {"counts every line"}),
    "first position": (("[0][:, -1] /", "[0][:, 0] /"), {"sample: greedy"}),
    "whole sequence": (("x[:, -longest:]", "x"), {"sample: block size"}),
    "training mode": (("    model.eval()\n", ""), {"sample: eval mode"}),
    "gradients": (("@torch.no_grad()\n", ""), {"sample: eval mode"}),
    "temperature multiplied": (("[:, -1] / temperature", "[:, -1] * temperature"), {"sample: temperature, top k"}),
    "temperature ignored": (("[:, -1] / temperature", "[:, -1]"), {"sample: temperature, top k"}),
    "top k ignored": (("if top_k is not None:", "if False:"), {"sample: temperature, top k"}),
    "any place of the file": (("row[1] == guess for row, guess in zip(rows, predicted_places)", "guess in {row[1] for row in rows} for guess in predicted_places"), {"counts right answers"}),
    "a prefix": (("row[1] == guess", "row[1].startswith(guess)"), {"exact match"}),
    "first line skipped": (("for line in file]", "for line in file][1:]"), {"counts every line"}),
    "return in the loop": (("dim=1)\n    return x", "dim=1)\n        return x"), {"sample: greedy"}),
    "new tokens only": (("dim=1)\n    return x", "dim=1)\n    return x[:, -steps:]"), {"sample: greedy"}),
}  # fmt: skip

VIT = """
import torch
from torch import nn

class PatchEmbedding(nn.Module):
    def __init__(self, img_size=32, patch_size=4, in_chans=3, embed_dim=256):
        super().__init__()
        self.count = (img_size // patch_size) ** 2
        self.conv = nn.Conv2d(in_chans, embed_dim, patch_size, stride=patch_size)

    def forward(self, x):
        return self.conv(x).flatten(2).transpose(1, 2)

class EncoderBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, hidden_dim, dropout=0.0):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(embed_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, embed_dim), nn.Dropout(dropout))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))

class ViT(nn.Module):
    def __init__(self, img_size=32, patch_size=4, in_chans=3, num_classes=100, embed_dim=256, depth=6, num_heads=8, mlp_dim=512, dropout=0.01):
        super().__init__()
        self.patches = PatchEmbedding(img_size, patch_size, in_chans, embed_dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.pos = nn.Parameter(torch.zeros(1, self.patches.count + 1, embed_dim))
        self.blocks = nn.ModuleList([EncoderBlock(embed_dim, num_heads, mlp_dim, dropout) for _ in range(depth)])
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, images):
        x = self.patches(images)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])

def train_epoch(model, loader, optimizer, criterion, device):
    model.train()
    total = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)
"""
VIT_EINOPS = """
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from einops.layers.torch import Rearrange
from torch import nn

class PatchEmbed(nn.Module):
    def __init__(self, image_size, patch_size, channels, dim):
        super().__init__()
        cut = Rearrange("b c (r p) (s q) -> b (r s) (p q c)", p=patch_size, q=patch_size)
        self.embed = nn.Sequential(cut, nn.Linear(channels * patch_size**2, dim))
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, (image_size // patch_size) ** 2 + 1, dim))

    def forward(self, img):
        x = self.embed(img)
        return torch.cat((repeat(self.cls_token, "1 1 d -> b 1 d", b=len(x)), x), dim=1) + self.positions

class Attention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * heads * dim_head, bias=False), nn.Linear(heads * dim_head, dim)

    def forward(self, x):
        q, k, v = (rearrange(y, "b n (h d) -> b h n d", h=self.heads) for y in self.to_qkv(self.norm(x)).chunk(3, -1))
        return self.to_out(rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)"))

class TransformerBlock(nn.Module):
    def __init__(self, dim, heads, mlp_dim, dim_head=16, dropout=0.0):
        super().__init__()
        self.attend = Attention(dim, heads, dim_head)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))

    def forward(self, x):
        x = self.attend(x) + x
        return self.ff(x) + x

class VisionTransformer(nn.Module):
    def __init__(self, *, image_size, patch_size, num_classes, dim, depth, heads, mlp_dim, channels=3, dim_head=16, dropout=0.0, emb_dropout=0.0):
        super().__init__()
        self.embed = PatchEmbed(image_size, patch_size, channels, dim)
        self.drop = nn.Dropout(emb_dropout)
        self.layers = nn.Sequential(*[TransformerBlock(dim, heads, mlp_dim, dim_head, dropout) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, num_classes))

    def forward(self, img):
        return self.head(self.layers(self.drop(self.embed(img))).mean(dim=1))

def train_step(net, x, y, opt):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return {"loss": loss.detach(), "accuracy": 0.0}
"""
VIT_CONFIG = """
import math
import torch
from torch import nn

class PatchEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.p = config.patch_size
        self.project = nn.Linear(config.in_channels * self.p**2, config.hidden_size)

    def forward(self, x):
        p = self.p
        return self.project(x.unfold(2, p, p).unfold(3, p, p).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))

class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.h = config.num_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d) for _ in range(4))
        self.l1, self.l2 = nn.Linear(d, config.mlp_dim), nn.Linear(config.mlp_dim, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (f(x).reshape(b, t, self.h, -1).transpose(1, 2) for f in (self.wq, self.wk, self.wv))
        w = torch.softmax(q @ k.mT / math.sqrt(d // self.h), -1)
        x = self.n1(x + self.wo((w @ v).transpose(1, 2).reshape(b, t, d)))
        return self.n2(x + self.l2(torch.relu(self.l1(x)))), w

class ViT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.patches = PatchEmbeddings(config)
        self.positions = nn.Embedding((config.image_size // config.patch_size) ** 2 + 1, config.hidden_size)
        self.cls = nn.Parameter(torch.randn(config.hidden_size))
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.out = nn.Linear(config.hidden_size, config.num_classes)

    def forward(self, images, labels=None):
        x = self.patches(images)
        x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1)
        x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x, _ = layer(x)
        return {"logits": self.out(x[:, 0])}

def train(model, train_dataloader, opt, loss_fn, device, scheduler=None, num_epochs=10):
    history = []
    for epoch in range(num_epochs):
        model.train()
        for batch in train_dataloader:
            images, labels = (part.to(device) for part in batch)
            loss = loss_fn(model(images), labels)
            loss.backward()
            opt.step()
            opt.zero_grad()
            history.append(loss.item())
        if scheduler is not None:
            scheduler.step()
    return history
"""
VIT_OTHER_NAMES = (
    VIT.replace("embed_dim", "hidden").replace("hidden_dim", "mlp_hidden").replace("mlp_dim", "mlp_hidden")
    .replace("import torch\n", "import torch\nfrom tqdm.notebook import tqdm\n", 1)
    .replace("in loader:", "in tqdm(loader, leave=False):")
)  # fmt: skip
VIT_STYLES = {
    "torch layers": VIT, "einops": VIT_EINOPS, "config, post-norm": VIT_CONFIG, "hidden is the model's": VIT_OTHER_NAMES,
}  # fmt: skip
PATCHES_OF_VIT_WRONG = {
    "reshaped at once": (("flatten(2).transpose(1, 2)", "reshape(len(x), self.count, -1)"), {"independent patches"}),
    "features first": (("flatten(2).transpose(1, 2)", "flatten(2)"), {"shape"}),
    "not flattened": (("self.conv(x).flatten(2).transpose(1, 2)", "self.conv(x)"), {"shape"}),
    "column by column": (("self.conv(x).flatten", "self.conv(x).transpose(2, 3).flatten"), {"order"}),
    "an activation": (("self.conv(x).flatten", "self.conv(x).relu().flatten"), {"one linear projection"}),
    "overlapping patches": (("nn.Conv2d(in_chans, embed_dim, patch_size, stride=patch_size)", "nn.Conv2d(in_chans, embed_dim, 2 * patch_size - 1, stride=patch_size, padding=patch_size // 2 + 1)"), None),
    "half a stride": (("stride=patch_size)", "stride=patch_size // 2)"), {"shape", "independent patches"}),
    "a row is missing": (("self.conv(x).flatten", "self.conv(x)[:, :, :-1].flatten"), {"shape", "every pixel"}),
    "dropout in eval": (("self.conv(x).flatten", "nn.functional.dropout(self.conv(x), 0.1).flatten"), {"deterministic, independent images"}),
    "one channel": (("nn.Conv2d(in_chans,", "nn.Conv2d(1,"), None),
    "first channel only": (("self.conv(x)", "self.conv(x * torch.tensor([1.0, 0, 0], dtype=x.dtype).view(1, 3, 1, 1))"), {"every pixel"}),
    "detached": (("return self.conv(x)", "return self.conv(x.detach())"), {"gradients"}),
    "mean over the batch": (("return self.conv(x)", "return self.conv(x - x.mean(0, keepdim=True))"), None),
}  # fmt: skip
BLOCK_WRONG = {
    "no residual": (("x = x + self.attn(", "x = self.attn("), {"residual connections"}),
    "no residual around the MLP": (("return x + self.mlp(", "return self.mlp("), {"residual connections"}),
    "no norm before attention": (("h = self.norm1(x)", "h = x"), {"layer norms"}),
    "no norm before the MLP": (("self.mlp(self.norm2(x))", "self.mlp(x)"), {"layer norms"}),
    "linear MLP": (("nn.GELU(), nn.Linear(hidden_dim", "nn.Linear(hidden_dim"), {"MLP"}),
    "no MLP": (("return x + self.mlp(self.norm2(x))", "return x"), {"MLP"}),
    "batch_first forgotten": ((", batch_first=True", ""), {"sees everything", "independent images"}),
    "one head": (("nn.MultiheadAttention(embed_dim, num_heads,", "nn.MultiheadAttention(embed_dim, 1,"), {"multi-head attention"}),
    "causal": (("h, h, h, need_weights=False", "h, h, h, need_weights=False, attn_mask=torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)"), {"sees everything", "no positions, no mask"}),
    "positions inside": (("h = self.norm1(x)", "x = x + torch.arange(x.shape[1]).to(x)[:, None]\n        h = self.norm1(x)"), {"no positions, no mask"}),
    "detached": (("need_weights=False)[0]", "need_weights=False)[0].detach()"), {"gradient"}),
}  # fmt: skip
MODEL_WRONG = {
    "softmax at the end": (("return self.head(x[:, 0])", "return self.head(x[:, 0]).softmax(-1)"), {"logits"}),
    "no positions": ((", dim=1) + self.pos", ", dim=1)"), {"positions"}),
    "a plain list": (("nn.ModuleList([EncoderBlock(embed_dim, num_heads, mlp_dim, dropout) for _ in range(depth)])", "[EncoderBlock(embed_dim, num_heads, mlp_dim, 0.0).double() for _ in range(depth)]"), {"depth", "deterministic, independent images"}),
    "a random class token": (("self.cls.expand(len(x), -1, -1)", "torch.randn(len(x), 1, x.shape[-1]).to(x)"), {"deterministic, independent images", "gradients"}),
    "1000 classes": (("nn.Linear(embed_dim, num_classes)", "nn.Linear(embed_dim, 1000)"), {"shape"}),
    "one block for all": (("nn.ModuleList([EncoderBlock(embed_dim, num_heads, mlp_dim, dropout) for _ in range(depth)])", "nn.ModuleList([EncoderBlock(embed_dim, num_heads, mlp_dim, dropout)] * depth)"), {"depth"}),
    "depth ignored": (("range(depth)", "range(2)"), {"depth"}),
    "positions detached": (("+ self.pos\n", "+ self.pos.detach()\n"), {"gradients"}),
    "every token classified": (("self.head(x[:, 0])", "self.head(x)"), None),
    "one block unused": (("for block in self.blocks:", "for block in self.blocks[:-1]:"), {"depth"}),
    "blocks side by side": (("            x = block(x)\n        return self.head(x[:, 0])", "            y = block(x)\n        return self.head(y[:, 0])"), {"depth"}),
    "no class token": (("torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos", "x + self.pos[:, 1:]"), {"gradients"}),
    "read too early": (("        for block in self.blocks:\n            x = block(x)\n        return self.head(x[:, 0])", "        y = x[:, 1]\n        for block in self.blocks:\n            x = block(x)\n        return self.head(y)"), None),
    "mean over the batch": (("return self.head(x[:, 0])", "return self.head(x[:, 0] - x[:, 0].mean(0))"), None),
    "dropout in eval": (("return self.head(x[:, 0])", "return self.head(nn.functional.dropout(x[:, 0], 0.1))"), {"deterministic, independent images"}),
}  # fmt: skip
TRAINING_WRONG = {
    "no zero_grad": (("        optimizer.zero_grad()\n", ""), {"gradients cleared"}),
    "no step": (("        optimizer.step()\n", ""), {"right step"}),
    "no gradient": (("        loss = criterion(model(images), labels)\n", "        with torch.no_grad():\n            loss = criterion(model(images), labels)\n"), {"right step"}),
    "a forged mode": (("    model.train()\n", "    model.modes = type('L', (list,), {'append': lambda s, v: list.append(s, True)})()\n"), {"training mode"}),
    "a sum": (("return total / len(loader)", "return total"), {"returns the loss"}),
    "no backward": (("        loss.backward()\n", ""), {"right step"}),
    "cleared before the step": (("        optimizer.zero_grad()\n        loss = criterion(model(images), labels)\n        loss.backward()\n", "        loss = criterion(model(images), labels)\n        loss.backward()\n        optimizer.zero_grad()\n"), {"right step"}),
    "probabilities": (("criterion(model(images), labels)", "criterion(model(images).softmax(-1), labels)"), {"right step"}),
    "eval mode": (("    model.train()\n    total", "    model.eval()\n    total"), {"training mode"}),
    "return in the loop": (("    return total / len(loader)", "        return total"), {"every batch, once"}),
    "nothing returned": (("    return total / len(loader)\n", ""), {"returns the loss"}),
    "step after the loop": (("        optimizer.step()\n        total += loss.item()\n", "        total += loss.item()\n    optimizer.step()\n"), {"every batch, once"}),
    "half of the first loss": (("    return total / len(loader)", "        return total / len(loader)"), {"every batch, once"}),
    "one step for all": (("        optimizer.zero_grad()\n        loss = criterion(model(images), labels)\n        loss.backward()\n        optimizer.step()\n        total += loss.item()\n", "        loss = criterion(model(images), labels)\n        loss.backward()\n        total += loss.item()\n    optimizer.step()\n"), {"every batch, once"}),
    "divided by the batch size": (("criterion(model(images), labels)", "criterion(model(images), labels) / len(images)"), {"right step"}),
    "loss grows": (("loss.backward()", "(-loss).backward()"), {"right step"}),
    "two steps": (("        optimizer.step()\n", "        optimizer.step()\n        optimizer.step()\n"), {"right step"}),
    "data read twice": (("in loader:\n        images, labels = images.to(device), labels.to(device)\n        optimizer", "in [*loader, *loader]:\n        images, labels = images.to(device), labels.to(device)\n        optimizer"), {"every batch, once"}),
    "own predictions": (("criterion(model(images), labels)", "criterion(model(images), model(images).argmax(-1))"), {"right step"}),
    "last loss": (("return total / len(loader)", "return loss.item()"), {"returns the loss"}),
}  # fmt: skip

COURSES = {
    "cs224n-char-corruption": (CORRUPTION_STYLES, CORRUPTION, CORRUPTION_WRONG),
    "cs224n-name-dataset": (NAMES_STYLES, NAMES, NAMES_WRONG),
    "cs224n-rope": (ROTARY_STYLES, ROTARY, ROTARY_WRONG),
    "cs224n-perceiver": (PERCEIVER_STYLES, PERCEIVER, PERCEIVER_WRONG),
    "cs224n-finetuning": (FINETUNING_STYLES, FINETUNING, FINETUNING_WRONG),
    "cs224n-evaluation": (EVALUATION_STYLES, EVALUATION, EVALUATION_WRONG),
    "nyu-vit-patch-embedding": (VIT_STYLES, VIT, PATCHES_OF_VIT_WRONG),
    "nyu-vit-encoder-block": (VIT_STYLES, VIT, BLOCK_WRONG),
    "nyu-vit-model": (VIT_STYLES, VIT, MODEL_WRONG),
    "nyu-vit-training-step": (VIT_STYLES, VIT, TRAINING_WRONG),
    "causal-self-attention": (CAUSAL_STYLES, "", {}),
    "dense-synthesizer": (SYNTHESIZER_STYLES, "", {}),
}
