"""Claims about encoders and decoders: what each sees, and what each is used for.

The synthetic language: words come in classes that follow one another in a ring. The first word of a sentence is a
homonym: it belongs to either of two classes, and only the following words tell which.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, Heatmap
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_least, at_most, near
from qkv.claims.experiment import Lab, influence_map, influence_shades, mean_and_range, train_model
from qkv.models import Seq2Seq, Seq2SeqConfig
from qkv.nn import masks
from qkv.nn.block import Block, BlockConfig
from qkv.nn.embeddings import LearnedPositions, TokenEmbedding

FAMILY = "the transformer"
GROUPS, WORDS, LENGTH = 4, 6, 8
HOMONYMS = 4
MASK = GROUPS * WORDS + HOMONYMS
VOCAB = MASK + 1


class FixedVectors(nn.Module):
    """Replaces an embedding: returns the given vectors instead of looking tokens up."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Tensor:
        return self.vectors[None]


def encoder_decoder(lab: Lab, source: int, target: int, layers: int) -> ExperimentResult:
    config = Seq2SeqConfig(
        vocab_size=11, dim=16, heads=2, encoder_layers=layers, decoder_layers=layers, dropout=0.0, tie_embeddings=False
    )
    model = lab.build(lambda: Seq2Seq(config)).eval()
    texts = torch.zeros(1, source, dtype=torch.long), torch.zeros(1, target, dtype=torch.long)
    vectors = lab.draw(source, 16) / 4, lab.draw(target, 16) / 4  # the model multiplies them by √16

    def encode(x: Tensor) -> Tensor:
        model.source_tokens = FixedVectors(x)
        return model.encode(texts[0])[0]

    def decode(x: Tensor) -> Tensor:
        model.source_tokens, model.target_tokens = FixedVectors(x[:source]), FixedVectors(x[source:])
        return model(*texts)[0]

    with lab.inside_layers():
        encoder = influence_map(encode, vectors[0])
        both = influence_map(decode, torch.cat(vectors))
    memory, own = both[:, :source], both[:, source:]
    past = own[torch.ones(target, target).tril().bool()]
    future = own[torch.ones(target, target).triu(1).bool()]
    return ExperimentResult(
        {
            "encoder: least influence of any token on any other": float(encoder.min()),
            "decoder: least influence of the past": float(past.min()),
            "decoder: least influence of the source": float(memory.min()),
            "decoder: largest influence of the future": float(future.max()),
        },
        (
            at_least("every source token reaches every encoder state", float(encoder.min()), 1e-12),
            at_least("the decoder sees its past", float(past.min()), 1e-12),
            at_least("the decoder sees the whole source", float(memory.min()), 1e-12),
            at_most("the decoder does not see its future", float(future.max()), 0.0),
        ),
        (
            Heatmap("encoder", "source token", "encoder state", influence_shades(encoder)),
            Heatmap("decoder, of its own tokens", "target token", "output", influence_shades(own)),
            Heatmap("decoder, of the source", "source token", "output", influence_shades(memory)),
        ),
    )


def draw_sentences(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sentences (count, LENGTH), and the sense (0 or 1) of the homonym that each begins with."""
    sense = torch.randint(0, 2, (count,), generator=generator)
    start = 2 * sense  # a homonym belongs to group 0 or group 2
    groups = (start[:, None] + torch.arange(LENGTH)) % GROUPS
    words = groups * WORDS + torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    words[:, 0] = GROUPS * WORDS + torch.randint(0, HOMONYMS, (count,), generator=generator)
    return words, sense


class TwoUseModel(nn.Module):
    """One transformer for both uses: causal or not."""

    def __init__(self, *, causal: bool, dim: int = 32) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.positions = TokenEmbedding(VOCAB, dim), LearnedPositions(LENGTH, dim)
        self.blocks = nn.ModuleList(Block(BlockConfig(dim=dim, heads=2, mlp_dim=64)) for _ in range(2))
        self.head = nn.Linear(dim, VOCAB)

    def states(self, tokens: Tensor) -> Tensor:
        t = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(t))
        for block in self.blocks:
            x = block(x, mask=masks.causal(t) if self.causal else None)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.states(tokens))


def train_two_use_model(lab: Lab, causal: bool, task: str, steps: int, start: int) -> TwoUseModel:
    """task: "next" predicts each next word, "gap" a masked word."""
    generator = torch.Generator().manual_seed(1000 * lab.seed + start)
    model = lab.build(lambda: TwoUseModel(causal=causal), start, torch.float32)

    def loss(_: int) -> Tensor:
        words = draw_sentences(48, generator)[0]
        if task == "next":
            return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        gaps = torch.rand(words.shape, generator=generator) < 0.25
        gaps[:, 1] |= ~gaps.any(1)
        return F.cross_entropy(model(words.masked_fill(gaps, MASK))[gaps], words[gaps])

    with lab.inside_layers():
        train_model(model, loss, steps, lr=5e-3)
    return model


def valid_sentence_share(lab: Lab, model: TwoUseModel, start: int) -> float:
    """The share of sentences, generated after the first two words, that follow the ring of groups."""
    generator = torch.Generator().manual_seed(1000 * lab.seed + 50 + start)
    words, _ = draw_sentences(200, generator)
    generated = words[:, :2]
    with lab.inside_layers(), torch.no_grad():
        for _ in range(LENGTH - 2):
            chances = model(generated)[:, -1].softmax(-1)
            generated = torch.cat((generated, torch.multinomial(chances, 1, generator=generator)), 1)
    groups = generated // WORDS
    follows = (groups[:, 2:] == (groups[:, 1:-1] + 1) % GROUPS) & (generated[:, 2:] < GROUPS * WORDS)
    return float(follows.all(1).double().mean())


def sense_accuracy(lab: Lab, model: TwoUseModel, start: int) -> float:
    """The accuracy of a linear probe for the sense of homonyms; it is fitted on other sentences."""
    words, sense = draw_sentences(600, torch.Generator().manual_seed(1000 * lab.seed + 70 + start))
    with lab.inside_layers(), torch.no_grad():
        states = F.pad(model.states(words)[:, 0], (0, 1), value=1.0).double()
    target = 2.0 * sense.double() - 1
    ridge = 1e-3 * torch.eye(states.shape[1], dtype=torch.float64)
    fitted, kept = states[:300], states[300:]
    probe = torch.linalg.solve(fitted.mT @ fitted + ridge, fitted.mT @ target[:300])
    return float(((kept @ probe > 0) == (sense[300:] == 1)).double().mean())


def same_group_share(lab: Lab, model: TwoUseModel) -> float:
    """The share of words whose nearest word, by mean state, is of the same group."""
    words, _ = draw_sentences(400, torch.Generator().manual_seed(1000 * lab.seed + 90))
    with lab.inside_layers(), torch.no_grad():
        states = model.states(words)[:, 1:].flatten(0, 1)
    which = words[:, 1:].flatten()
    table = torch.stack([states[which == word].mean(0) for word in range(GROUPS * WORDS)])
    table = F.normalize(table - table.mean(0), dim=-1)
    alike = table @ table.mT - 3 * torch.eye(len(table))
    groups = torch.arange(len(table)) // WORDS
    return float((groups[alike.argmax(1)] == groups).double().mean())


def two_uses(lab: Lab, steps: int, seeds: int) -> ExperimentResult:
    cases = {
        "encoder, embeds": (False, "gap"),
        "decoder, generates": (True, "next"),
        "encoder mask, trained to generate": (False, "next"),
    }
    generated: dict[str, list[float]] = {name: [] for name in cases}
    senses: dict[str, list[float]] = {name: [] for name in cases}
    group_shares = []
    for start in range(seeds):
        for name, (causal, task) in cases.items():
            lab.progress(f"{name}, start {start + 1} of {seeds}")
            model = train_two_use_model(lab, causal, task, steps, start)
            generated[name].append(valid_sentence_share(lab, model, start))
            senses[name].append(sense_accuracy(lab, model, start))
            if name == "encoder, embeds":
                group_shares.append(same_group_share(lab, model))
    valid, accuracies = ({n: mean_and_range(v) for n, v in found.items()} for found in (generated, senses))
    encoder, decoder, unmasked = cases
    return ExperimentResult(
        {
            **{f"{name}: grammatical sentences": value for name, value in valid.items()},
            **{f"{name}: accuracy of the sense of a homonym": value for name, value in accuracies.items()},
            "encoder: words nearest to one of their own group": mean_and_range(group_shares),
        },
        (
            at_least("the encoder's states tell the sense of a homonym", accuracies[encoder]["value"], 0.85),
            at_least(
                "the encoder's words are nearest to words of their group", sum(group_shares) / len(group_shares), 0.6
            ),
            near(
                "a causal mask hides the following words: the decoder guesses", accuracies[decoder]["value"], 0.5, 0.12
            ),
            at_least("the decoder generates grammatical sentences", valid[decoder]["value"], 0.7),
            at_least(
                "the decoder generates more of them than a generator trained without the causal mask, by",
                valid[decoder]["value"] - valid[unmasked]["value"],
                0.15,
            ),
            at_most("the encoder does not generate them", valid[encoder]["value"], 0.35),
        ),
        (
            Bars(
                "each at both tasks",
                "",
                "share",
                ["embed", "generate", "generate, no mask"],
                {
                    "homonym senses": [accuracies[n]["value"] for n in cases],
                    "sentences valid": [valid[n]["value"] for n in cases],
                },
                level=(0.5, "guessing the sense"),
                roles={"homonym senses": "key", "sentences valid": "output"},
            ),
        ),
    )


CLAIMS = (
    Claim(
        "encoder-decoder",
        FAMILY,
        "An encoder state depends on every token; a decoder output on its past and the source, never on its future.",
        "holds",
        "",
        encoder_decoder,
        (
            Knob("source", 6, "source tokens", (1, 64)),
            Knob("target", 7, "target tokens", (2, 64)),
            Knob("layers", 2, "layers of each", (1, 16)),
        ),
        ("unmasked", "mask-after-softmax", "mask-one-late", "itself"),
        "Influence measured by gradients: full, triangular, full.",
    ),
    Claim(
        "two-uses",
        FAMILY,
        "Encoder states embed meaning, a decoder generates; with the other mask, each fails at the other's task (on a "
        "synthetic language).",
        "holds",
        "",
        two_uses,
        (
            Knob("steps", 200, "training steps", (1, 50_000), long=2000),
            Knob("seeds", 1, "random starts", (1, 20), long=5),
        ),
        ("unmasked", "mask-after-softmax", "itself"),
        "The encoder tells senses but cannot generate; the decoder generates; without its mask it copies.",
        cost="minutes",
        overturn={"steps": 60},
    ),
)
