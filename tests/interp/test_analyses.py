"""Rollout, value norms, logit lens, effects, sweeps, patching and comparison against independent computations."""

import copy
import json
from dataclasses import fields

import pytest
import torch
import transformers_models
from torch import nn

from qkv import interp
from qkv.models import GPT, Encoder, EncoderConfig, GPTConfig, Seq2Seq, Seq2SeqConfig, ViT, ViTConfig


def loud(model: nn.Module) -> nn.Module:
    """A model in float64 whose random weights are large enough to matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4 if parameter.ndim > 1 else 1)
    return model.double().eval()


@pytest.fixture
def gpt() -> GPT:
    return loud(GPT(GPTConfig(vocab_size=31, dim=32, layers=3, heads=4, kv_heads=2, position="rope")))


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 31, (2, 9))


def build_case(name: str) -> tuple[nn.Module, dict]:
    found = next(each for each in transformers_models.TRANSFORMERS_MODELS if each.name == name)
    return transformers_models.build(found, found.backends[-1]), found.inputs()


def test_rollout_is_the_product_of_the_layers_mixed_with_the_identity(gpt, tokens):
    trace = interp.trace(gpt, tokens)
    for batch in (0, 1):
        expected = torch.eye(9, dtype=torch.float64)
        for layer in range(3):
            expected = (0.5 * torch.eye(9) + 0.5 * trace.weights(layer, batch=batch).mean(0)) @ expected
        found = interp.rollout(trace, batch=batch)
        torch.testing.assert_close(found.weights, expected)
        torch.testing.assert_close(interp.rollout(trace, queries=[-1, 3], batch=batch).weights, expected[[8, 3]])
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(9, dtype=torch.float64))


def test_rollout_by_maximum_and_without_a_residual(gpt, tokens):
    trace = interp.trace(gpt, tokens)
    expected = torch.eye(9, dtype=torch.float64)
    for layer in range(3):
        most = trace.weights(layer).amax(0)
        expected = (most / most.sum(-1, keepdim=True)) @ expected
    torch.testing.assert_close(interp.rollout(trace, heads="max", residual=0.0).weights, expected)


def test_rollout_of_a_pair_is_of_the_stack_asked_for():
    model = Seq2Seq(Seq2SeqConfig(vocab_size=31, dim=32, encoder_layers=2, decoder_layers=2, heads=4)).eval()
    trace = interp.trace(model, (torch.randint(0, 31, (1, 7)), torch.randint(0, 31, (1, 5))))
    assert interp.rollout(trace).weights.shape == (5, 5)
    assert interp.rollout(trace, stack="encoder").weights.shape == (7, 7)
    with pytest.raises(ValueError, match="no stack 'middle'; there are encoder, decoder"):
        interp.rollout(trace, stack="middle")
    with pytest.raises(ValueError, match="self-attention layers over one sequence"):
        interp.rollout(trace, layers=["encoder.0.attention", "decoder.0.attention"])


def test_value_norms_weighted_is_the_norm_of_what_each_key_contributes(gpt, tokens):
    trace = interp.trace(gpt, tokens, activations=["blocks.1.attention.to_v"])
    values = trace.activation("blocks.1.attention.to_v")[1].unflatten(-1, (2, 8))  # s g d
    out = gpt.blocks[1].attention.to_out.weight
    norms = interp.value_norms(gpt, tokens, batch=1)[1]
    assert norms.projection == "blocks.1.attention.to_out"
    for head in range(4):
        each = values[:, head // 2] @ out[:, 8 * head : 8 * head + 8].mT  # s c
        expected = (trace.weights(1, head, batch=1)[..., None] * each[None]).norm(dim=-1)
        torch.testing.assert_close(norms.weighted(trace, head, batch=1), expected)
        window = norms.weighted(trace, head, batch=1, rows=range(2, 5), columns=range(1, 4))
        torch.testing.assert_close(window, expected[2:5, 1:4])


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "BERT", "ViT", "BART", "T5", "GPT-OSS"])
def test_value_norms_find_the_output_projection_of_transformers_models_by_its_numbers(name):
    model, inputs = build_case(name)
    projections = [norms.projection for norms in interp.value_norms(model, inputs)]
    endings = ("c_proj", "o_proj", "output.dense", "out_proj", ".o")
    assert projections and all(each is not None and each.endswith(endings) for each in projections), projections


def test_the_contributions_of_all_heads_and_keys_add_up_to_what_the_layer_returns():
    model, inputs = build_case("GPT-2")
    from qkv.interp.model_parts import head_values, trace_with_projections

    trace, projections = trace_with_projections(model, inputs)
    projection, layer = projections[1], trace.layers[1]
    assert projection is not None
    contributed = trace.weights(1) @ head_values(layer) @ projection.heads
    bias = model.get_submodule(projection.name).bias
    torch.testing.assert_close(contributed.sum(0) + bias, trace.activation(projection.name)[0], rtol=1e-4, atol=1e-5)


def test_value_norms_of_the_fused_encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    norms = interp.value_norms(model, x)[0]
    attention = model.layers[0].self_attn
    read = model.layers[0].norm1(x)[0]
    values = (read @ attention.in_proj_weight[32:].mT + attention.in_proj_bias[32:]).unflatten(-1, (4, 4))
    expected = torch.einsum("shd,chd->hsc", values, attention.out_proj.weight.unflatten(1, (4, 4))).norm(dim=-1)
    torch.testing.assert_close(norms.norms, expected.detach())
    assert norms.projection == "layers.0.self_attn.out_proj"


def test_logit_lens_ends_with_the_models_own_answer_and_reads_other_layers_with_norm_and_head(gpt, tokens):
    from qkv.interp.lens import lens_logits

    logits, names = lens_logits(gpt, tokens)
    trace = interp.trace(gpt, tokens, activations=["tokens", "position_embedding", "blocks.0", "blocks.1"])
    torch.testing.assert_close(logits[-1], gpt(tokens).detach())
    for place, stream in ((0, "position_embedding"), (1, "blocks.0"), (2, "blocks.1")):
        torch.testing.assert_close(logits[place], gpt.head(gpt.norm(trace.activation(stream))).detach())
    assert names == ("input", "blocks.0", "blocks.1", "blocks.2")
    found = interp.logit_lens(gpt, tokens, k=3, positions=[-1, 0], batch=1)
    assert found.tokens[-1, 0, 0] == gpt(tokens)[1, -1].argmax() and found.positions == (8, 0)
    torch.testing.assert_close(found.kl[-1], torch.zeros(2))
    chances = gpt(tokens)[1, 0].softmax(-1).detach().float()
    torch.testing.assert_close(found.probabilities[-1, 1], chances.topk(3).values)


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Gemma 2"])
def test_logit_lens_reads_transformers_language_models(name):
    from qkv.interp.lens import lens_logits

    model, inputs = build_case(name)
    logits, names = lens_logits(model, inputs)
    with torch.no_grad():
        torch.testing.assert_close(logits[-1], model(**inputs).logits)
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        norm = model.transformer.ln_f if name == "GPT-2" else model.model.norm
        if name != "Gemma 2":  # whose logits are capped once more
            torch.testing.assert_close(logits[0], model.lm_head(norm(hidden[0])))
            torch.testing.assert_close(logits[1], model.lm_head(norm(hidden[1])))
    assert len(names) == 3


def test_logit_lens_says_when_it_knows_no_head():
    model = Encoder(EncoderConfig(vocab_size=31, dim=32, layers=2, heads=4))
    with pytest.raises(ValueError, match="does not know this model's head: this Encoder returns vectors"):
        interp.logit_lens(model, torch.randint(0, 31, (1, 5)))


def test_ablation_sweep_equals_zeroing_slices_of_the_output_projection(gpt, tokens):
    done = []
    found = interp.ablation_sweep(gpt, tokens, progress=lambda count, total: done.append((count, total)))
    assert found.measure == "loss" and done[-1] == (12, 12)

    def loss(model) -> float:
        return nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()

    assert found.before == pytest.approx(loss(gpt), abs=1e-12)
    for layer in range(3):
        for head in range(4):
            ablated = copy.deepcopy(gpt)
            with torch.no_grad():
                ablated.blocks[layer].attention.to_out.weight[:, 8 * head : 8 * head + 8] = 0
            assert found.table[layer][head] == pytest.approx(loss(ablated) - loss(gpt), abs=1e-10)
    most = max(max(row) for row in found.table)
    assert found.largest(1)[0][2] == most


def test_scale_sweep_equals_scaling_the_queries(gpt, tokens):
    found = interp.scale_sweep(gpt, tokens, (0.0, 1.0, 2.0))
    for layer in range(3):
        for column, factor in enumerate((0.0, 1.0, 2.0)):
            other = copy.deepcopy(gpt)
            with torch.no_grad():
                other.blocks[layer].attention.to_q.weight *= factor
                other.blocks[layer].attention.to_q.bias *= factor
            loss = nn.functional.cross_entropy(other(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).item()
            assert found.before + found.table[layer][column] == pytest.approx(loss, abs=1e-10)


def test_ablation_sweep_without_right_answers_measures_the_kl_divergence():
    model = loud(ViT(ViTConfig(image_size=16, patch_size=8, dim=32, layers=2, heads=2, num_classes=5)))
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    found = interp.ablation_sweep(model, images)
    assert found.measure == "kl" and found.before == 0.0 and min(min(row) for row in found.table) > 0
    with interp.intervene(model, ablate_heads=[(1, 1)]):
        ablated = model(images).log_softmax(-1)
    old = model(images).log_softmax(-1)
    kl = nn.functional.kl_div(ablated, old, log_target=True, reduction="batchmean").item()
    assert found.table[1][1] == pytest.approx(kl, abs=1e-12)
    labeled = interp.ablation_sweep(model, images, targets=torch.tensor([1, 4]))
    assert labeled.measure == "loss"
    assert labeled.before == pytest.approx(nn.functional.cross_entropy(model(images), torch.tensor([1, 4])).item())


def test_measure_effect_of_nothing_is_zero_and_of_a_masked_edge_what_the_formulas_say(gpt, tokens):
    nothing = interp.measure_effect(gpt, tokens)
    assert nothing.kl == 0.0 and nothing.increase == 0.0 and nothing.flipped == 0.0
    found = interp.measure_effect(gpt, tokens, mask_edges=[(0, None, 4, 0)], positions=[4, 5])
    with interp.intervene(gpt, mask_edges=[(0, None, 4, 0)]):
        new = gpt(tokens).log_softmax(-1)
    old = gpt(tokens).log_softmax(-1)
    kl = (old.exp() * (old - new)).sum(-1)
    assert found.kl == pytest.approx(kl[:, 4:6].mean().item(), abs=1e-12)
    assert list(found.kl_at) == pytest.approx(kl[0].tolist(), abs=1e-12)
    assert found.kl_at[3] == 0.0 < found.kl_at[4]
    assert list(found.top_before) == old[0].argmax(-1).tolist() and list(found.top_after) == new[0].argmax(-1).tolist()
    picked = -new[:, 4:6].gather(-1, tokens[:, 5:7, None]).mean().item()
    assert found.loss_after == pytest.approx(picked, abs=1e-12)


def test_measure_effect_refuses_a_layer_that_does_not_exist(gpt, tokens):
    for wrong in (
        {"ablate_heads": [(9, 0)]},
        {"mask_edges": [(3, None, 1, 0)]},
        {"scale": {7: 1.0}},
        {"pattern": {(-1, 0): torch.eye(9)}},
    ):
        with pytest.raises(ValueError, match=r"ran in layer -?\d; layers that ran: 0 .*, 1 .*, 2 "):
            interp.measure_effect(gpt, tokens, **wrong)


def test_measure_effect_takes_a_measure_where_there_are_no_logits():
    model = Encoder(EncoderConfig(vocab_size=31, dim=32, layers=2, heads=4))
    tokens = torch.randint(0, 31, (1, 5))
    with pytest.raises(ValueError, match="returns vectors, not logits"):
        interp.measure_effect(model, tokens, ablate_heads=[(0, 0)])
    found = interp.measure_effect(model, tokens, ablate_heads=[(0, 0)], measure=lambda out: out[0, 0, 0])
    assert found.kind == "measure" and found.increase != 0.0


def test_activation_patching_of_everything_recovers_the_whole_answer(gpt):
    clean, corrupted = torch.randint(0, 31, (1, 7)), torch.randint(0, 31, (1, 7))
    for what in ("residual", "heads"):
        found = interp.activation_patching(gpt, clean, corrupted, what=what)
        assert len(found.table) == 3 and len(found.table[0]) == (7 if what == "residual" else 4)
        if what == "residual":
            assert list(found.whole) == pytest.approx([1.0, 1.0, 1.0], abs=1e-9)
            assert found.table[2][:-1] == pytest.approx([0.0] * 6, abs=1e-9)  # the answer is read at the last place
            assert found.table[2][-1] == pytest.approx(1.0, abs=1e-9)
        measure = lambda output: output[:, -1, 3].mean()  # noqa: E731
        itself = interp.activation_patching(gpt, corrupted, clean, what=what, measure=measure)
        assert itself.clean != itself.corrupted
    trace = interp.trace(gpt, clean, activations=["blocks.1"])
    nothing = interp.measure_effect(gpt, clean, patch={"blocks.1": trace.activation("blocks.1")})
    assert nothing.kl == 0.0


def test_activation_patching_of_a_head_equals_splicing_its_slice_into_the_output_projections_input(gpt):
    clean, corrupted = torch.randint(0, 31, (1, 7)), torch.randint(0, 31, (1, 7))
    measure = lambda output: output[:, -1, 3].mean()  # noqa: E731
    found = interp.activation_patching(gpt, clean, corrupted, what="heads", measure=measure)
    out = gpt.blocks[1].attention.to_out
    seen = []
    out.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    clean_value, low = measure(gpt(clean)).item(), measure(gpt(corrupted)).item()
    spliced = seen[1].clone()
    spliced[..., 16:24] = seen[0][..., 16:24]
    out.register_forward_pre_hook(lambda module, inputs: (spliced,))
    assert found.table[1][2] == pytest.approx((measure(gpt(corrupted)).item() - low) / (clean_value - low), abs=1e-9)


def test_activation_patching_says_what_does_not_fit(gpt):
    short, long = torch.randint(0, 31, (1, 5)), torch.randint(0, 31, (1, 7))
    with pytest.raises(ValueError, match="must have the same shape"):
        interp.activation_patching(gpt, short, long, measure=lambda output: output[:, -1, 3].mean())
    with pytest.raises(ValueError, match="on both inputs; choose inputs that it answers differently"):
        interp.activation_patching(gpt, short, short)


def test_compare_of_a_model_with_itself_gives_distance_zero_and_matches_every_head_with_itself(gpt, tokens):
    found = interp.compare(interp.trace(gpt, tokens), interp.trace(gpt, tokens))
    assert found.mean == 0.0 and found.matched == 0.0
    assert all((match.first == match.second) and match.distance == 0.0 for match in found.matches)
    json.dumps(found.to_json(), allow_nan=False)


def test_compare_matches_a_copy_with_permuted_heads(tokens):
    model = loud(GPT(GPTConfig(vocab_size=31, dim=32, layers=2, heads=4)))
    order = [2, 0, 3, 1]
    rows = torch.cat([torch.arange(8 * head, 8 * head + 8) for head in order])
    other = copy.deepcopy(model)
    with torch.no_grad():
        for block in other.blocks:
            for name in ("to_q", "to_k", "to_v"):
                projection = getattr(block.attention, name)
                projection.weight.copy_(projection.weight[rows])
                projection.bias.copy_(projection.bias[rows])
            block.attention.to_out.weight.copy_(block.attention.to_out.weight[:, rows])
    found = interp.compare(interp.trace(model, tokens), interp.trace(other, tokens))
    assert found.matched < 1e-5 < found.mean
    assert [(match.first, match.second) for match in found.matches if match.layer == 1] == [
        (head, order.index(head)) for head in range(4)
    ]


def test_compare_measures_the_mean_root_of_the_jensen_shannon_divergence(gpt, tokens):
    other = torch.randint(0, 31, (2, 9))
    first, second = interp.trace(gpt, tokens), interp.trace(gpt, other)
    found = interp.compare(first, second)
    p, q = first.weights(1, 2), second.weights(1, 2)
    middle = (p + q) / 2

    def kl(a, b):
        return torch.where(a > 0, a * (a / b).log2(), 0.0).sum(-1)

    expected = ((kl(p, middle) + kl(q, middle)) / 2).clamp(min=0).sqrt().mean().item()
    assert found.table[1][2] == pytest.approx(expected, abs=1e-6)


def test_compare_refuses_inputs_of_different_lengths(gpt):
    with pytest.raises(ValueError, match="same number of tokens"):
        interp.compare(
            interp.trace(gpt, torch.zeros(1, 4, dtype=torch.int64)),
            interp.trace(gpt, torch.zeros(1, 5, dtype=torch.int64)),
        )


def test_every_result_converts_to_json(gpt, tokens):
    trace = interp.trace(gpt, tokens)
    results = [
        interp.classify_heads(gpt, tokens),
        interp.rollout(trace),
        interp.value_norms(gpt, tokens)[0],
        interp.logit_lens(gpt, tokens),
        interp.measure_effect(gpt, tokens, ablate_heads=[(0, 0)]),
        interp.scale_sweep(gpt, tokens, (2.0,)),
        interp.compare(trace, trace),
    ]
    for result in results:
        plain = result.to_json()
        assert json.loads(json.dumps(plain, allow_nan=False)) == plain and set(plain) == {
            field.name for field in fields(result)
        }
