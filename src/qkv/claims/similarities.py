"""Claims about what transformers share: with RNNs, with MLPs, and heads with the channels of a convolution."""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv._figures import Bars, Lines
from qkv.claims.claim import Claim, ExperimentResult, Knob, at_most, equal, near
from qkv.claims.experiment import Lab, max_diff, reference_attention
from qkv.models import RNN, Encoder, EncoderConfig, RNNConfig
from qkv.nn import FeedForward, LayerKVCache, MultiHeadAttention, masks

FAMILY = "the transformer"
HEADS = 2  # of the layers that are compared


def similar_to_rnn(lab: Lab, tokens: int, dim: int, causal: int) -> ExperimentResult:
    q, k = (1 + F.elu(lab.draw(tokens, dim)) for _ in range(2))  # a positive feature map of queries and keys
    v = lab.draw(tokens, dim)
    steps, state = linear_attention_steps(q, k, v)
    linear = max_diff(steps, linear_attention(q, k, v, causal=bool(causal)))
    layer, x = lab.build(lambda: MultiHeadAttention(dim, HEADS)), lab.draw(1, tokens, dim)
    cache, streamed, sizes = LayerKVCache(), [], []
    mask = masks.causal(tokens, tokens) if causal else None
    with lab.inside_layers(), torch.no_grad():
        at_once = layer(x, mask=mask)
        for t in range(tokens):
            streamed.append(layer(x[:, t : t + 1], cache=cache))
            sizes.append(2 * (t + 1) * dim)  # a key and a value for each token so far
    stepwise = max_diff(torch.cat(streamed, 1), at_once)
    constant = [state] * tokens
    shared = parameters_at(8) == parameters_at(64)
    return ExperimentResult(
        {
            "linear attention: recurrence − masked matrix form": linear,
            "softmax attention: token by token with a KV cache − all at once": stepwise,
            "state of linear attention, numbers": state,
            f"KV cache of softmax attention after {tokens} tokens, numbers": sizes[-1],
            "state of an RNN of the same dim, numbers": dim,
        },
        (
            equal("linear attention is a recurrence, S_t = S_(t−1) + φ(k_t)v_tᵀ", linear),
            equal("softmax attention runs token by token too, with a KV cache", stepwise),
            at_most("both share their weights over positions: parameters differ by", 0 if shared else 1, 0),
            at_most(
                "the state of softmax attention is as small as that of linear attention", sizes[-1] / state, 1, "beyond"
            ),
        ),
        (
            Lines(
                "state that the next token needs",
                "tokens so far",
                "numbers",
                list(range(1, tokens + 1)),
                {"softmax attention (KV cache)": sizes, "linear attention": constant, "RNN": [dim] * tokens},
                roles={"softmax attention (KV cache)": "wrong", "linear attention": "query", "RNN": "key"},
            ),
        ),
        f"the state may grow, or the softmax is replaced by a feature map: after {tokens} tokens the KV cache of "
        f"softmax attention has {sizes[-1]:,} numbers, the state of linear attention {state:,} at any length",
        f"Linear attention carries {state:,} numbers, an RNN {dim}; the KV cache of softmax attention grows to "
        f"{sizes[-1]:,} after {tokens} tokens.",
    )


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """Attention with weights q_i·k_j / Σ_j q_i·k_j instead of a softmax, for all tokens at once; q, k are positive."""
    weights = q @ k.mT
    weights = weights.tril() if causal else weights
    return weights @ v / weights.sum(-1, keepdim=True)


def linear_attention_steps(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, int]:
    """The same as a recurrence, S ← S + k vᵀ and z ← z + k, h = qᵀS / qᵀz; also the numbers of its state."""
    matrix, total, out = k.new_zeros(k.shape[1], v.shape[1]), k.new_zeros(k.shape[1]), []
    for query, key, value in zip(q, k, v, strict=True):
        matrix, total = matrix + torch.outer(key, value), total + key
        out.append(query @ matrix / (query @ total))
    return torch.stack(out), matrix.numel() + total.numel()


def parameters_at(length: int) -> tuple[int, int]:
    """The parameters of an encoder with sinusoids and of an RNN for texts of a length."""
    encoder = Encoder(EncoderConfig(vocab_size=9, max_length=length, dim=8, heads=2, layers=1, position="sinusoidal"))
    return encoder.num_parameters, RNN(RNNConfig(vocab_size=9, dim=8, hidden_size=8, layers=1)).num_parameters


def similar_to_mlp(lab: Lab, dim: int, mlp_dim: int, tokens: int) -> ExperimentResult:
    counted = f"{tokens} token{'s' if tokens > 1 else ''}"
    # a feed-forward network as a memory: its first matrix has the keys, its second one the values
    network = lab.build(lambda: FeedForward(dim, mlp_dim, activation="relu"))
    x, y = lab.draw(1, tokens, dim), lab.draw(1, tokens, dim)
    memory = torch.zeros_like(x[0])
    for t, token in enumerate(x[0]):
        memory[t] += network.to_out.bias.detach()
        for i in range(mlp_dim):
            strength = torch.relu(network.to_hidden.weight[i] @ token + network.to_hidden.bias[i]).detach()
            memory[t] += strength * network.to_out.weight[:, i].detach()
    as_memory = max_diff(network(x)[0].detach(), memory)
    # attention to keys and values that are weights is such a network, with a softmax as its activation
    keys, values = lab.draw(mlp_dim, dim), lab.draw(mlp_dim, dim)
    two_layers = F.linear(F.softmax(F.linear(x[0], keys) * dim**-0.5, -1), values.mT)
    fixed = lab.attention(x[0], keys, values)
    as_network = max(max_diff(fixed, two_layers), max_diff(fixed, reference_attention(x[0], keys, values)[0]))
    # one token: a whole layer is a residual MLP; several: the weights depend on the input, which no linear layer has
    layer = lab.build(lambda: MultiHeadAttention(dim, HEADS, bias=False))
    assert layer.to_v is not None
    product = (layer.to_out.weight @ layer.to_v.weight).detach()
    with lab.inside_layers(), torch.no_grad():
        alone = max_diff(layer(x[:, :1]), x[:, :1] @ product.mT)
        additive = max_diff(layer(x + y), layer(x) + layer(y))
    return ExperimentResult(
        {
            "feed-forward network − Σ_i σ(k_i·x + b_i) v_i": as_memory,
            "attention to weights as keys and values − two linear layers with a softmax": as_network,
            "self-attention of one token − W_O W_V x": alone,
            f"self-attention of {counted}: |f(x + y) − f(x) − f(y)|": additive,
        },
        (
            equal("a feed-forward network is a memory of key-value pairs", as_memory),
            equal("attention to learned keys and values is a two-layer network", as_network),
            equal("for one token self-attention is a linear layer", alone),
            at_most(f"self-attention of {counted} is a linear layer: off from additivity by", additive, 1e-9, "beyond"),
        ),
        (
            Bars(
                "largest difference",
                "",
                "",
                ["memory", "two layers", "one token", f"{counted}, additivity"],
                {"difference": [max(value, 1e-17) for value in (as_memory, as_network, alone, additive)]},
                logy=True,
            ),
        ),
        "keys and values are weights, or there is one token: among several tokens the weights of attention depend on "
        f"the input (f(x + y) differs from f(x) + f(y) by {additive:.2g} for {counted}), those of an MLP do not",
        f"Differences from an MLP: {as_memory:.1g}, {as_network:.1g} and {alone:.1g}. Difference from additivity: "
        f"{additive:.2g} for {counted}.",
    )


def heads_are_channels(lab: Lab, dim: int, heads: int, tokens: int, beta: float) -> ExperimentResult:
    layer = lab.build(lambda: MultiHeadAttention(dim, heads, bias=False))
    assert layer.to_q is not None and layer.to_k is not None and layer.to_v is not None
    layer.to_q.weight.data *= beta
    x, y = lab.draw(1, tokens, dim), lab.draw(1, tokens, dim)
    order = torch.randperm(heads, generator=lab.generator)
    moved = lab.build(lambda: MultiHeadAttention(dim, heads, bias=False))
    assert moved.to_q is not None and moved.to_k is not None and moved.to_v is not None
    rows = torch.arange(dim).unflatten(0, (heads, -1))[order].flatten()
    for old, new in ((layer.to_q, moved.to_q), (layer.to_k, moved.to_k), (layer.to_v, moved.to_v)):
        new.weight.data = old.weight.data[rows]
    moved.to_out.weight.data = layer.to_out.weight.data[:, rows]
    width = dim // heads
    with lab.inside_layers(), torch.no_grad():
        out = layer(x)
        total = torch.zeros_like(out)
        for head in range(heads):  # one head alone: the others' columns of W_O are 0
            only = torch.zeros_like(layer.to_out.weight)
            only[:, head * width : (head + 1) * width] = 1
            kept = layer.to_out.weight.data
            layer.to_out.weight.data = kept * only
            total += layer(x)
            layer.to_out.weight.data = kept
        permuted = max_diff(moved(x), out)
        attention_additive = max_diff(layer(x + y), layer(x) + layer(y))
    summed = max_diff(total, out)
    # the same of a convolution: `dim` channels of kernel 3, then a 1×1 convolution
    kernel, mix = lab.draw(dim, dim, 3), lab.draw(dim, dim)

    def convolve(z: Tensor) -> Tensor:
        return F.conv1d(F.conv1d(z.mT, kernel, padding=1), mix[..., None]).mT

    channels = torch.randperm(dim, generator=lab.generator)
    shuffled = F.conv1d(F.conv1d(x.mT, kernel[channels], padding=1), mix[:, channels, None]).mT
    convolution_permuted = max_diff(shuffled, convolve(x))
    convolution_additive = max_diff(convolve(x + y), convolve(x) + convolve(y))
    return ExperimentResult(
        {
            "output − Σ over heads of W_O^h head_h": summed,
            "heads in another order, with their columns of W_O": permuted,
            "channels in another order, with their columns of the 1×1 convolution": convolution_permuted,
            "convolution: |f(x + y) − f(x) − f(y)|": convolution_additive,
            "attention: |f(x + y) − f(x) − f(y)|": attention_additive,
        },
        (
            equal("the output is a sum over heads, as over channels", summed),
            equal("the order of heads does not matter", permuted),
            near("the order of channels does not matter", convolution_permuted, 0.0, 1e-10),
            near("a convolution is linear: its weights do not depend on the input", convolution_additive, 0.0, 1e-10),
            at_most("a head is linear: its weights do not depend on the input", attention_additive, 1e-9, "beyond"),
        ),
        (
            Bars(
                "what heads share with channels, and what not",
                "",
                "largest difference",
                ["sum", "order of heads", "order of channels", "convolution is linear", "attention is linear"],
                {
                    "difference": [
                        max(value, 1e-17)
                        for value in (
                            summed,
                            permuted,
                            convolution_permuted,
                            convolution_additive,
                            attention_additive,
                        )
                    ]
                },
                logy=True,
            ),
        ),
        f"it is said of the structure: the mixing weights of a head depend on the input (f(x + y) differs from "
        f"f(x) + f(y) by {attention_additive:.2g} at β = {beta:g}), a kernel does not ({convolution_additive:.1g})",
        f"Sums and order agree to {max(summed, permuted):.1g}. Difference from additivity: {convolution_additive:.1g} "
        f"of the convolution, {attention_additive:.2g} of attention at β = {beta:g}.",
    )


CLAIMS = (
    Claim(
        "similar-to-rnn",
        FAMILY,
        "A causal transformer layer is a recurrence like an RNN: weights shared over positions, and a state from which "
        "the next output follows. Linear attention is one exactly, with a state of constant size.",
        "holds-if",
        "the state may grow, or the softmax is replaced by a feature map",
        similar_to_rnn,
        (
            Knob("tokens", 24, "tokens", (2, 256)),
            Knob("dim", 8, "model dim", (2, 64), step=2),
            Knob("causal", 1, "1 with a causal mask, 0 without", (0, 1)),
        ),
        ("wrong-axis", "mask-one-late", "unmasked"),
        "The state that the next token needs: constant for linear attention and an RNN, growing for softmax attention.",
    ),
    Claim(
        "similar-to-mlp",
        FAMILY,
        "MLP and attention are one form: a feed-forward network is attention to keys and values that are weights, with "
        "another activation than the softmax; for one token self-attention is a linear layer.",
        "holds-if",
        "keys and values are weights, or there is one token",
        similar_to_mlp,
        (
            Knob("dim", 6, "model dim", (2, 64), step=2),
            Knob("mlp_dim", 16, "hidden dimension: key-value pairs", (1, 256)),
            Knob("tokens", 5, "tokens", (1, 64)),
        ),
        ("wrong-axis", "no-scale", "v-for-k", "not-normalized"),
        "Where attention equals an MLP, and where its weights depend on the input.",
    ),
    Claim(
        "heads-are-channels",
        "heads",
        "Heads are to attention what channels are to a convolution: several maps with weights of their own run in "
        "parallel, in any order, and a 1×1 map sums them.",
        "holds-if",
        "it is said of the structure: the mixing weights of a head depend on the input",
        heads_are_channels,
        (
            Knob("dim", 12, "model dim", (4, 96), step=4),
            Knob("heads", 4, "heads", (1, 4)),
            Knob("tokens", 6, "tokens", (2, 64)),
            Knob("beta", 1.0, "factor on the queries; 0 makes attention uniform", (0.0, 100.0)),
        ),
        ("uniform", "itself"),
        "Sums and order agree; only the convolution is linear in its input.",
    ),
)
