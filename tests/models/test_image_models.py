"""ViT, CNN and MLP against the same arithmetic written out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import IMAGE, IMAGE_MODELS, VITS, assert_close, inputs, make_random_model, parametrize_cases
from torch import nn

from qkv.checkpoints.torch_modules import fill_block
from qkv.models import CNNConfig, MLPConfig, ViT, ViTConfig
from qkv.nn.block import Block
from qkv.positions import sinusoidal


def patches_by_hand(images, patch):
    """(b, patches, channels·patch·patch): row by row, cut with loops."""
    side = images.shape[-1] // patch
    cut = [
        images[:, :, patch * row : patch * (row + 1), patch * column : patch * (column + 1)].flatten(1)
        for row in range(side)
        for column in range(side)
    ]
    return torch.stack(cut, dim=1)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("order", ["pre", "post"])
@parametrize_cases(VITS)
def test_vit_equals_transformer_encoder_on_patches_cut_by_hand(config, order, device):
    config = replace(config, norm_order=order)
    model = make_random_model(config, device)
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=order == "pre", dtype=torch.float64, device=device
    )
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    for block, their_layer in zip(model.blocks, theirs.layers, strict=True):
        fill_block(block, their_layer)
    (images,) = inputs(config, device, batch=3)
    weight, bias = model.patches.convolution.weight, model.patches.convolution.bias
    x = patches_by_hand(images, 2) @ weight.flatten(1).mT + bias
    if config.position == "learned-2d":
        grid = [
            model.positions.rows[row, 0] + model.positions.columns[0, column] for row in range(4) for column in range(4)
        ]
        x = x + torch.stack(grid)
    if config.pooling == "cls":
        x = torch.cat((model.class_token.expand(3, 1, 8), x), dim=1)
    if config.position == "learned":
        x = x + model.positions.weight
    if config.position == "sinusoidal":
        x = x + sinusoidal(x.shape[1], 8, dtype=torch.float64).to(device)
    x = theirs(x)
    if order == "pre":
        x = F.layer_norm(x, (8,), model.norm.weight, model.norm.bias)
    summary = x[:, 0] if config.pooling == "cls" else x.sum(1) / 16
    assert_close(model(images), summary @ model.head.weight.mT + model.head.bias)
    assert model.hidden_states(images).shape == (3, 16 + (config.pooling == "cls"), 8)


@parametrize_cases(VITS)
@torch.no_grad()
def test_vit_with_unfold_equals_vit_with_convolution(config, device):
    model = make_random_model(config, device)
    twin = make_random_model(replace(config, unfold=True), device)
    twin.load_state_dict(model.state_dict())
    (images,) = inputs(config, device)
    assert_close(twin(images), model(images))


@parametrize_cases(VITS)
@torch.no_grad()
def test_vit_without_positions_ignores_the_order_of_patches(config, device):
    model = make_random_model(config, device)
    (images,) = inputs(config, device)
    moved = images.roll(2, dims=3)  # each patch one place to the right
    same = torch.allclose(model(moved), model(images))
    assert same == (config.position == "none")


@parametrize_cases(IMAGE_MODELS)
@torch.no_grad()
def test_image_models_treat_images_of_a_batch_independently(config, device):
    model = make_random_model(config, device)
    (images,) = inputs(config, device, batch=4)
    out = model(images)
    assert out.shape == (4, 5)
    alone = torch.cat([model(image[None]) for image in images])
    assert_close(out, alone)
    assert model(images[:0]).shape == (0, 5)


@torch.no_grad()
def test_cnn_equals_its_formula(device):
    model = make_random_model(CNNConfig(**{**IMAGE, "image_size": 9}, stage_channels=(3, 4), kernel_size=5), device)
    norms: list[Any] = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.running_mean = torch.randn_like(norm.bias)
        norm.running_var = torch.rand_like(norm.bias) + 0.5
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    images = torch.randn(2, 2, 9, 9, dtype=torch.float64).to(device)
    x = images
    for index, (convolution, norm) in enumerate(zip(convolutions, norms, strict=True)):
        x = F.conv2d(F.pad(x, (2, 2, 2, 2)), convolution.weight)
        mean, deviation = norm.running_mean[:, None, None], (norm.running_var + norm.eps).sqrt()[:, None, None]
        x = torch.relu((x - mean) / deviation * norm.weight[:, None, None] + norm.bias[:, None, None])
        if index % 2:
            side = x.shape[-1] // 2
            x = x[..., : 2 * side, : 2 * side].unflatten(-1, (side, 2)).unflatten(-3, (side, 2)).amax((-1, -3))
    expected = x.flatten(2).mean(-1) @ model.head.weight.mT + model.head.bias
    assert_close(model(images), expected)


@torch.no_grad()
def test_mlp_equals_its_formula(device):
    model = make_random_model(MLPConfig(**IMAGE, hidden_sizes=(7, 6)), device)
    (images,) = inputs(model.config, device)
    parameters = [*model.parameters()]
    x = images.flatten(1)
    for weight, bias in zip(parameters[0:-2:2], parameters[1:-2:2], strict=True):
        x = (x @ weight.mT + bias).clamp(min=0)
    assert_close(model(images), x @ parameters[-2].mT + parameters[-1])


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ((2, 2, 8, 9), torch.float64, r"\(batch, 2, 8, 8\), got \(2, 2, 8, 9\)"),
        ((2, 3, 8, 8), torch.float64, r"\(batch, 2, 8, 8\), got \(2, 3, 8, 8\)"),
        ((2, 8, 8), torch.float64, r"\(batch, 2, 8, 8\), got \(2, 8, 8\)"),
        ((2, 2, 8, 8), torch.uint8, "uint8"),
        ((2, 2, 8, 8), torch.float32, "float64.*float32"),
    ],
)
@parametrize_cases({"vit": VITS["vit, mean, none"], "cnn": IMAGE_MODELS["cnn"], "mlp": IMAGE_MODELS["mlp"]})
def test_image_models_reject_images_of_another_shape_or_dtype(config, shape, dtype, words, device, unchecked):
    model = make_random_model(config, device)
    with pytest.raises(ValueError, match=words):
        model(torch.zeros(shape, dtype=dtype, device=device))


def test_vit_num_parameters_follows_the_formula():
    sizes: dict[str, Any] = {"image_size": 16, "num_classes": 7, "heads": 4, "mlp_dim": 20}
    for patch, dim, layers, head in ((2, 8, 1, "cls"), (4, 12, 3, "mean")):
        config = ViTConfig(**{**sizes, "patch_size": patch, "dim": dim, "layers": layers, "pooling": head})
        tokens = (16 // patch) ** 2 + (head == "cls")
        attention, norms = 4 * (dim * dim + dim), 2 * 2 * dim
        feed_forward = dim * 20 + 20 + 20 * dim + dim
        expected = (3 * patch**2 + 1) * dim + (dim if head == "cls" else 0) + tokens * dim
        expected += layers * (attention + norms + feed_forward) + 2 * dim + (dim + 1) * 7
        assert make_random_model(config, torch.device("cpu")).num_parameters == expected


def test_vit_with_init_pytorch_has_the_initial_weights_of_pytorch_modules():
    torch.manual_seed(0)
    model = ViT(ViTConfig(dim=128, layers=1, heads=4, mlp_dim=96, init="pytorch"))
    block, theirs = model.blocks[0], nn.MultiheadAttention(128, 4, batch_first=True)
    assert isinstance(block, Block) and model.class_token is not None
    for projection, like in (
        (block.attention.to_q, theirs.in_proj_weight),
        (block.attention.to_v, theirs.in_proj_weight),
    ):
        assert projection is not None and not projection.bias.any()
        assert projection.weight.abs().max().item() == pytest.approx(like.abs().max().item(), rel=0.001)  # uniform
        assert projection.weight.std().item() == pytest.approx(like.std().item(), rel=0.02)
    assert not block.attention.to_out.bias.any()
    assert isinstance(model.head, nn.Linear)
    for layer in (block.attention.to_out, block.feed_forward.to_hidden, model.head):
        assert layer.weight.abs().max().item() == pytest.approx(128**-0.5, rel=0.01)  # PyTorch's bound 1/√inputs
    assert isinstance(model.positions, nn.Embedding)
    assert model.positions.weight.std().item() == pytest.approx(1, abs=0.03)
    assert model.class_token.std().item() == pytest.approx(1, abs=0.2)


def test_vit_refuses_an_unknown_init(unchecked):
    with pytest.raises(ValueError, match="init must be 'gpt2' or 'pytorch', got 'xavier'"):
        ViTConfig(init="xavier")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("order", ["pre", "post"])
def test_vit_in_training_equals_vit_that_computes_every_token(order: str):
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=8, dim=16, layers=3, norm_order=order)).double()  # pyright: ignore
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    found = {}
    for training in (True, False):
        logits = model.train(training)(images)
        gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
        found[training] = (logits, *gradients)
    for short, whole in zip(found[True], found[False], strict=True):
        assert torch.allclose(short, whole, atol=1e-12)


@pytest.mark.parametrize("position", ["learned", "learned-2d"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_vit_sees_only_the_patches_that_are_kept(position, pooling):
    config = ViTConfig(image_size=8, patch_size=2, dim=8, layers=2, heads=2, position=position, pooling=pooling)
    model = make_random_model(config, torch.device("cpu"))
    images, kept = torch.randn(3, 3, 8, 8, dtype=torch.float64), torch.tensor([1, 6, 11, 12])
    changed = images.clone()
    changed[:, :, :2, :2] += 1.0  # patch 0, which is dropped
    assert_close(model(changed, kept), model(images, kept))
    changed[:, :, :2, 2:4] += 1.0  # patch 1
    assert (model(changed, kept) - model(images, kept)).abs().max() > 1e-6
    assert_close(model(images, torch.arange(16)), model(images))
    order = torch.tensor([2, 0, 3, 1])  # the order in which patches are named does not matter
    assert_close(model(images, kept[order]), model(images, kept))
