"""Two uses of one architecture: encoders that embed, decoders that generate; and each at the other's job.

The made-up language: words come in classes that follow one another in a ring. The first word of a sentence is a
homonym: it stands for either of two classes, and only what follows tells which.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars
from qkv.claims.claim import Claim, Knob, Lab, Measured, spread
from qkv.claims.predicates import at_least, at_most, near
from qkv.claims.training import train
from qkv.nn import masks
from qkv.nn.block import Block, BlockConfig
from qkv.nn.embeddings import LearnedPositions, TokenEmbedding

FAMILY = "the transformer"
GROUPS, WORDS, LENGTH = 4, 6, 8
HOMONYMS = 4
MASK = GROUPS * WORDS + HOMONYMS
VOCAB = MASK + 1


def sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sentences (count, LENGTH), and the sense (0 or 1) of the homonym that each begins with."""
    sense = torch.randint(0, 2, (count,), generator=generator)
    start = 2 * sense  # a homonym is of group 0 or of group 2
    groups = (start[:, None] + torch.arange(LENGTH)) % GROUPS
    words = groups * WORDS + torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    words[:, 0] = GROUPS * WORDS + torch.randint(0, HOMONYMS, (count,), generator=generator)
    return words, sense


class Reader(nn.Module):
    """One transformer for both uses: causal or not."""

    def __init__(self, *, causal: bool, width: int = 32) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.places = TokenEmbedding(VOCAB, width), LearnedPositions(LENGTH, width)
        self.blocks = nn.ModuleList(Block(BlockConfig(dim=width, heads=2, mlp_dim=64)) for _ in range(2))
        self.head = nn.Linear(width, VOCAB)

    def states(self, tokens: Tensor) -> Tensor:
        t = tokens.shape[1]
        x = self.tokens(tokens) + self.places(torch.arange(t))
        for block in self.blocks:
            x = block(x, mask=masks.causal(t) if self.causal else None)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.states(tokens))


def trained_reader(lab: Lab, causal: bool, job: str, steps: int, start: int) -> Reader:
    """job: "next" predicts each next word, "gap" a word that is masked."""
    generator = torch.Generator().manual_seed(1000 * lab.seed + start)
    model = lab.build(lambda: Reader(causal=causal), start, torch.float32)

    def loss(_: int) -> Tensor:
        words = sentences(48, generator)[0]
        if job == "next":
            return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        gaps = torch.rand(words.shape, generator=generator) < 0.25
        gaps[:, 1] |= ~gaps.any(1)
        return F.cross_entropy(model(words.masked_fill(gaps, MASK))[gaps], words[gaps])

    with lab.inside_layers():
        train(model, loss, steps, rate=5e-3)
    return model


def valid_share(lab: Lab, model: Reader, start: int) -> float:
    """How many sentences, written word by word after the first two, keep to the ring of groups."""
    generator = torch.Generator().manual_seed(50 + start)
    words, _ = sentences(200, generator)
    written = words[:, :2]
    with lab.inside_layers(), torch.no_grad():
        for _ in range(LENGTH - 2):
            chances = model(written)[:, -1].softmax(-1)
            written = torch.cat((written, torch.multinomial(chances, 1, generator=generator)), 1)
    groups = written // WORDS
    follows = (groups[:, 2:] == (groups[:, 1:-1] + 1) % GROUPS) & (written[:, 2:] < GROUPS * WORDS)
    return float(follows.all(1).double().mean())


def sense_share(lab: Lab, model: Reader, start: int) -> float:
    """How many senses a linear probe reads off the homonyms' states; it is fitted on other sentences."""
    words, sense = sentences(600, torch.Generator().manual_seed(70 + start))
    with lab.inside_layers(), torch.no_grad():
        states = F.pad(model.states(words)[:, 0], (0, 1), value=1.0).double()
    wanted = 2.0 * sense.double() - 1
    ridge = 1e-3 * torch.eye(states.shape[1], dtype=torch.float64)
    fitted, kept = states[:300], states[300:]
    probe = torch.linalg.solve(fitted.mT @ fitted + ridge, fitted.mT @ wanted[:300])
    return float(((kept @ probe > 0) == (sense[300:] == 1)).double().mean())


def neighbour_share(lab: Lab, model: Reader) -> float:
    """How many words have another word of their own group as the nearest one, by their mean states."""
    words, _ = sentences(400, torch.Generator().manual_seed(90))
    with lab.inside_layers(), torch.no_grad():
        states = model.states(words)[:, 1:].flatten(0, 1)
    which = words[:, 1:].flatten()
    table = torch.stack([states[which == word].mean(0) for word in range(GROUPS * WORDS)])
    table = F.normalize(table - table.mean(0), dim=-1)
    alike = table @ table.mT - 3 * torch.eye(len(table))
    groups = torch.arange(len(table)) // WORDS
    return float((groups[alike.argmax(1)] == groups).double().mean())


def two_uses(lab: Lab, steps: int, seeds: int) -> Measured:
    cases = {
        "encoder, embeds": (False, "gap"),
        "decoder, generates": (True, "next"),
        "encoder mask, trained to generate": (False, "next"),
    }
    written: dict[str, list[float]] = {name: [] for name in cases}
    told: dict[str, list[float]] = {name: [] for name in cases}
    likeness = []
    for start in range(seeds):
        for name, (causal, job) in cases.items():
            lab.note(f"{name}, start {start + 1} of {seeds}")
            model = trained_reader(lab, causal, job, steps, start)
            written[name].append(valid_share(lab, model, start))
            told[name].append(sense_share(lab, model, start))
            if name == "encoder, embeds":
                likeness.append(neighbour_share(lab, model))
    writes, tells = ({n: spread(v) for n, v in found.items()} for found in (written, told))
    encoder, decoder, unmasked = cases
    return Measured(
        {
            **{f"{name}: sentences that keep to the grammar": value for name, value in writes.items()},
            **{f"{name}: senses of a homonym told": value for name, value in tells.items()},
            "encoder: words nearest to one of their own group": spread(likeness),
        },
        (
            at_least("the encoder's states tell the sense of a homonym", tells[encoder]["value"], 0.85),
            at_least("its words stand near their like", sum(likeness) / len(likeness), 0.6),
            near("a causal mask hides what tells: the decoder guesses", tells[decoder]["value"], 0.5, 0.12),
            at_least("the decoder writes sentences that keep to the grammar", writes[decoder]["value"], 0.7),
            at_most("trained without the causal mask it does not", writes[unmasked]["value"], 0.5),
            at_most("nor does the encoder", writes[encoder]["value"], 0.35),
        ),
        (
            Bars(
                "each at both jobs",
                "",
                "share",
                ["embed", "generate", "generate, no mask"],
                {
                    "homonyms told": [tells[n]["value"] for n in cases],
                    "sentences right": [writes[n]["value"] for n in cases],
                },
                level=(0.5, "guessing the sense"),
                roles={"homonyms told": "key", "sentences right": "output"},
            ),
        ),
    )


CLAIMS = (
    Claim(
        "two-uses",
        FAMILY,
        "Encoder states embed meaning, a decoder generates; masked otherwise, each fails at the other's job (made-up "
        "language).",
        "holds",
        "",
        two_uses,
        (
            Knob("steps", 200, "training steps", (1, 50_000), long=2000),
            Knob("seeds", 1, "starts", (1, 20), long=5),
        ),
        ("unmasked", "mask-after-softmax", "itself"),
        "The encoder tells senses and cannot write; the decoder writes and cannot tell; without its mask it copies.",
        cost="minutes",
        overturn={"steps": 60},
    ),
)
