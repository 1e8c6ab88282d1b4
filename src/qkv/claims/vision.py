"""Claims about vision transformers, trained on synthetic digits: positions and class token.

The images are made in code: ten digits of 20×20 pixels, drawn anywhere, with noise.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv._figures import Bars, Heatmap
from qkv.claims.claim import Claim, ExperimentResult, Knob, Predicate, at_least, at_most, near
from qkv.claims.experiment import Attention, Lab, mean_and_range, t_interval, train_model
from qkv.claims.mutants import ATTENTIONS
from qkv.models import CNN, CNNConfig, ViT, ViTConfig
from qkv.nn import masks

FAMILY = "vision"
SIDE, GLYPH, CLASSES = 20, 14, 10
PATCH = 4
GRID = SIDE // PATCH
GLYPHS = (  # 5 × 7 pixels, one word for each row
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11110 00001 00001 01110 00001 00001 11110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)

_cache: dict[tuple[object, ...], nn.Module] = {}


@cache
def glyphs() -> Tensor:
    """The ten digits, resized: (10, GLYPH, GLYPH)."""
    small = torch.tensor([[[float(cell) for cell in row] for row in glyph.split()] for glyph in GLYPHS])
    return torch.nn.functional.interpolate(small[:, None], size=(GLYPH, GLYPH), mode="bilinear")[:, 0]


def draw_digits(count: int, generator: torch.Generator, *, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Images (count, 1, 20, 20) with mean near 0, and their labels."""
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    shapes = glyphs()[labels]
    height, width = shapes.shape[1:]
    images = torch.zeros(count, SIDE, SIDE)
    down = torch.randint(0, SIDE - GLYPH + 1, (count,), generator=generator)
    right = torch.randint(0, SIDE - GLYPH + 1, (count,), generator=generator)
    rows = down[:, None, None] + torch.arange(height)[None, :, None]
    columns = right[:, None, None] + torch.arange(width)[None, None, :]
    images[torch.arange(count)[:, None, None], rows, columns] = shapes
    strength = 0.75 + 0.5 * torch.rand(count, 1, 1, generator=generator)
    images = images * strength + noise * torch.randn(images.shape, generator=generator)
    return images[:, None] - 0.25, labels


def vit_config(**options) -> ViTConfig:
    images = {"image_size": SIDE, "patch_size": PATCH, "channels": 1, "num_classes": CLASSES}
    return ViTConfig(**{**images, "dim": 32, "layers": 2, "heads": 2, "mlp_dim": 64, **options})


def draw_images(lab: Lab, start: int, count: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    return draw_digits(count, torch.Generator().manual_seed(10_000 * lab.seed + 10 * start + offset))


def train_cached(
    lab: Lab,
    model_config: ViTConfig | CNNConfig,
    start: int,
    count: int,
    steps: int,
    attention: Attention | None = None,
    stop_below: float = 0.0,
) -> nn.Module:
    """A model trained on `count` images; cached, because claims share it."""
    attention = attention or lab.attention
    key = (lab.seed, model_config, start, count, steps, attention, lab.component, stop_below)
    if key in _cache:
        return _cache[key]
    model = lab.build(lambda: build_model(model_config), start, torch.float32)
    if lab.component is not None and isinstance(model, ViT) and model.positions is not None:
        model.positions = lab.build(lambda: lab.component(GRID * GRID + 1, model_config.dim), start, torch.float32)  # type: ignore[union-attr]
    train_on(lab, model, *draw_images(lab, start, count), steps, start, attention, stop_below)
    if len(_cache) > 60:
        _cache.clear()
    _cache[key] = model
    return model


def train_on(
    lab: Lab,
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    steps: int,
    start: int,
    attention: Attention | None = None,
    stop_below: float = 0.0,
) -> None:
    """Train a model on images, in batches of 48."""
    order = torch.Generator().manual_seed(start)

    def loss(_: int) -> Tensor:
        rows = torch.randint(0, len(images), (48,), generator=order)
        return F.cross_entropy(model(images[rows]), labels[rows])

    with lab.inside_layers(attention):
        rate = 4e-3 if isinstance(model, ViT) else 1e-2
        train_model(model, loss, steps, lr=rate, weight_decay=0.01, stop_below=stop_below)


def build_model(model_config: ViTConfig | CNNConfig) -> nn.Module:
    """A new model. A ViT this narrow learns faster from weights that keep variances than from N(0, 0.02²)."""
    if isinstance(model_config, CNNConfig):
        return CNN(model_config)
    model = ViT(model_config)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return model


def accuracy(
    lab: Lab,
    model: nn.Module,
    start: int,
    attention: Attention | None = None,
    images: tuple[Tensor, Tensor] | None = None,
) -> float:
    """The accuracy on given images and labels; on a thousand test images if omitted."""
    pixels, labels = draw_images(lab, start, 1000, offset=5) if images is None else images
    with lab.inside_layers(attention), torch.no_grad():
        return float((model.eval()(pixels).argmax(-1) == labels).double().mean())


def grid_correlation(table: Tensor) -> float:
    """Rank correlation of the similarity of two position vectors with the nearness of the positions on the grid."""
    vectors = F.normalize(table - table.mean(0), dim=-1)
    positions = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).float()
    pairs = torch.triu_indices(len(positions), len(positions), 1)
    similarity = (vectors @ vectors.mT)[pairs[0], pairs[1]]
    nearness = -torch.cdist(positions, positions)[pairs[0], pairs[1]]
    ranks = [x.argsort().argsort().double() for x in (similarity, nearness)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def position_table(model: nn.Module) -> Tensor:
    return model.positions.weight.detach()[1:]  # type: ignore[union-attr, operator]


def position_maps(lab: Lab, count: int, steps: int, seeds: int) -> ExperimentResult:
    found: dict[str, list[float]] = {"untrained": [], "trained": [], "uniform attention": []}
    accuracies: dict[str, list[float]] = {"learned": [], "none": [], "sinusoidal": []}
    similarity = torch.zeros(GRID, GRID)
    for start in range(seeds):
        lab.progress(f"start {start + 1} of {seeds}")
        fresh = train_cached(lab, vit_config(), start, count, 0)
        model = train_cached(lab, vit_config(), start, count, steps)
        blind = train_cached(lab, vit_config(), start, count, steps, ATTENTIONS["uniform"])
        for name, made in (("untrained", fresh), ("trained", model), ("uniform attention", blind)):
            found[name].append(grid_correlation(position_table(made)))
        for position in accuracies if start < 2 else ():
            accuracies[position].append(
                accuracy(lab, train_cached(lab, vit_config(position=position), start, count, steps), start)
            )
        vectors = F.normalize(position_table(model) - position_table(model).mean(0), dim=-1)
        similarity = (vectors @ vectors[GRID * GRID // 2]).reshape(GRID, GRID).clamp(min=0)
    summary = {name: mean_and_range(values) for name, values in found.items()}
    scores = {name: mean_and_range(values) for name, values in accuracies.items()}
    gains = {
        name: t_interval([a - b for a, b in zip(found["trained"], found[name], strict=True)])
        for name in ("untrained", "uniform attention")
    }
    beats = {name: gain["low"] > 0 if seeds > 1 else None for name, gain in gains.items()}
    gain, blind_gain = gains.values()
    return ExperimentResult(
        {
            **{f"rank correlation with the grid, {name}": value for name, value in summary.items()},
            **{f"trained − {name}, 95 % interval": value for name, value in gains.items()},
            **{f"accuracy, {name} positions": value for name, value in scores.items()},
        },
        (
            Predicate("trained − untrained table, lower end", gain["low"], "> 0", beats["untrained"]),
            Predicate(
                "trained − table trained with uniform attention, lower end",
                blind_gain["low"],
                "> 0",
                beats["uniform attention"],
                "beyond",
            ),
            near("untrained, the table does not reflect the grid", summary["untrained"]["value"], 0.0, 0.15, "control"),
            at_least(
                "without positions accuracy falls, by", scores["learned"]["value"] - scores["none"]["value"], 0.02
            ),
        ),
        (
            Bars(
                "similarity against nearness",
                "",
                "rank correlation",
                list(summary),
                {"correlation": [v["value"] for v in summary.values()]},
            ),
            Heatmap("similarity to the center's vector", "column", "row", similarity.tolist()),
            Bars(
                "accuracy",
                "positions",
                "",
                list(scores),
                {"accuracy": [v["value"] for v in scores.values()]},
                level=(1 / CLASSES, "chance"),
            ),
        ),
        "it is said of the table, not of attention: the rank correlation with the grid is "
        f"{summary['trained']['value']:.2f}, {summary['untrained']['value']:.2f} untrained (difference "
        f"{gain['low']:.2f} to {gain['high']:.2f}) and {summary['uniform attention']['value']:.2f} with uniform "
        f"attention (difference {blind_gain['low']:.2f} to {blind_gain['high']:.2f}, {seeds} starts): no evidence that "
        "attention matters for it",
        f"Rank correlation of similarity and nearness: {summary['trained']['value']:.2f} trained, "
        f"{summary['uniform attention']['value']:.2f} with uniform attention, {summary['untrained']['value']:.2f} "
        f"untrained. Accuracy: {scores['learned']['value']:.2f} with learned positions, {scores['none']['value']:.2f} "
        "without.",
    )


def mask_class_token(attention: Attention) -> Attention:
    """Attention in which the class token cannot see the patches."""

    def masked(q, k, v, mask=None, **options):
        n = q.shape[-2]
        visible = torch.ones(n, n, dtype=torch.bool)
        visible[0, 1:] = False
        both = visible if mask is None else masks.as_mask(mask) & visible
        return attention(q, k, v, mask=both, **options)

    return masked


def class_token(lab: Lab, count: int, steps: int, seeds: int) -> ExperimentResult:
    found: dict[str, list[float]] = {"class token": [], "class token, edges masked": [], "mean of patches": []}
    for start in range(seeds):
        lab.progress(f"start {start + 1} of {seeds}")
        model = train_cached(lab, vit_config(), start, count, steps)
        mean = train_cached(lab, vit_config(pooling="mean"), start, count, steps)
        found["class token"].append(accuracy(lab, model, start))
        found["class token, edges masked"].append(accuracy(lab, model, start, mask_class_token(lab.attention)))
        found["mean of patches"].append(accuracy(lab, mean, start))
    summary = {name: mean_and_range(values) for name, values in found.items()}
    whole, cut, pooled = (summary[name]["value"] for name in found)
    return ExperimentResult(
        {**{f"accuracy, {name}": value for name, value in summary.items()}, "chance": 1 / CLASSES},
        (
            at_least("the class token reads the image", whole, 0.4),
            near("without edges to the patches the class token guesses", cut, 1 / CLASSES, 0.05),
            at_most("the mean of the patches does as well, within", abs(whole - pooled), 0.15),
        ),
        (
            Bars(
                "accuracy",
                "",
                "",
                list(summary),
                {"accuracy": [v["value"] for v in summary.values()]},
                level=(1 / CLASSES, "chance"),
            ),
        ),
    )


def _knobs(steps: int, seeds: int, count: int = 2000) -> tuple[Knob, ...]:
    return (
        Knob("count", count, "training images", (1, 100_000), long=10 * count),
        Knob("steps", steps, "training steps", (0, 50_000), long=10 * steps),
        Knob("seeds", seeds, "random starts", (1, 20), long=5),
    )


CLAIMS = (
    Claim(
        "position-maps",
        FAMILY,
        "Learned positions recover the grid of patches: near ones get similar vectors (on synthetic digits).",
        "holds-if",
        "it is said of the table, not of attention: with uniform attention the correlation is as high",
        position_maps,
        _knobs(350, 6),
        ("frozen-positions",),
        "Near positions on the grid get similar vectors, with any attention; without positions accuracy falls.",
        cost="minutes",
        overturn={"steps": 250, "seeds": 4},
    ),
    Claim(
        "class-token",
        FAMILY,
        "A ViT's class token gets all its information through its edges to the patches (on synthetic digits); the "
        "mean of the patches does as well.",
        "holds",
        "",
        class_token,
        _knobs(350, 2),
        ("itself", "unmasked"),
        "With its edges to the patches masked, the class token guesses.",
        cost="minutes",
        overturn={"steps": 250, "seeds": 1},
    ),
)
