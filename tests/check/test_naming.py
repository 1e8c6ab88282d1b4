"""The report names the mistake itself, and the condition under which it acts."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.check import Contract, run
from qkv.check.checks.backward import compare_backward
from qkv.check.hypotheses.formula import Design, Observation, Sizes
from qkv.check.hypotheses.visibility import describe_visibility, solve_visibility
from qkv.check.report import BUG_FAMILIES
from qkv.check.shapes import describe_condition

TEXTBOOK = Contract(kind="causal", scale="head", softmax="keys")


def below(t, s=None):
    s = t if s is None else s
    return torch.ones(t, s, dtype=torch.bool).tril(s - t)


class Layer(nn.Module):
    """Multi-head self-attention; subclasses write `attend(q, k, v)` for (b, h, t, d)."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


# -- masks that are solved ---------------------------------------------------------------------------------------------


def observation(mask, heads=4, batch=8, head_dim=8):
    """What attention with a mask (t, s) of factors gives."""
    t, s = mask.shape[-2:]
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(batch, n, heads * head_dim, generator=generator, dtype=torch.float64) for n in (t, s, s))
    split = [x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*split, attn_mask=mask.double().log()).transpose(1, 2).flatten(2)
    return Observation(q, k, v, out, Sizes(batch, heads, heads, t, s, head_dim))


@pytest.mark.parametrize("t", [5, 33, 65])
def test_solve_visibility_finds_an_arbitrary_mask(t):
    mask = torch.rand(t, t, generator=torch.Generator().manual_seed(t)) < 0.5
    mask |= torch.eye(t, dtype=torch.bool)
    found = solve_visibility(observation(mask), Design(causal=False).formula)
    assert found is not None
    assert torch.equal(found > 0.5, mask)


def test_solve_visibility_finds_a_soft_mask_and_its_number():
    factors = torch.where(below(12), 1.0, torch.tensor(-5.0).exp())
    found = solve_visibility(observation(factors), Design().formula)
    assert found is not None
    assert describe_visibility([(found, below(12))]) == (
        "mask not −∞", "all queries see later keys with scores lower by 5, not −∞",
    )  # fmt: skip


def test_solve_visibility_finds_nothing_under_a_wrong_scale():
    assert solve_visibility(observation(below(12)), Design(scale=1.0).formula) is None


def test_describe_visibility_says_which_queries_see_what():
    late = below(31) | (torch.arange(31) >= 24)[:, None]
    family, words = describe_visibility([(late.double(), below(31))])  # pyright: ignore[reportGeneralTypeIssues]
    assert (family, words) == ("leak", "queries from 24 on see every key: they are not masked")
    own = below(12) & ~torch.eye(12, dtype=torch.bool) | (torch.arange(12) == 0)
    family, words = describe_visibility([(own.double(), below(12))])  # pyright: ignore[reportGeneralTypeIssues]
    assert family == "mask off by one"
    assert "do not see their own key" in words


class LastBlockUnmasked(Layer):
    """A partial last block of 24 queries is not masked."""

    def attend(self, q, k, v):
        outs = []
        t = q.shape[2]
        for start in range(0, t, 24):
            part = q[:, :, start : start + 24]
            mask = below(t)[start : start + 24]
            if part.shape[2] < 24 and start:
                mask = torch.ones_like(mask)
            outs.append(masked(part, k, v, mask))
        return torch.cat(outs, 2)


class FirstKeyUnseen(Layer):
    def attend(self, q, k, v):
        if k.shape[2] > 1:
            k, v = k[:, :, 1:], v[:, :, 1:]
        return F.scaled_dot_product_attention(q, k, v)


class OneHeadSeesAhead(Layer):
    def attend(self, q, k, v):
        mask = below(q.shape[2]).repeat(self.heads, 1, 1)
        mask[self.heads // 2] |= torch.ones_like(mask[0]).tril(2)
        return masked(q, k, v, mask)


@pytest.mark.parametrize(
    ("layer", "kind", "family", "words"),
    [
        (LastBlockUnmasked, "causal", "leak", "see every key: they are not masked"),
        (FirstKeyUnseen, "bidirectional", "truncated", "the first key is never seen"),
        (OneHeadSeesAhead, "causal", "leak", "in head 2"),
    ],
)
def test_run_names_a_mask_that_no_list_contains(layer, kind, family, words):
    cause = run(layer, kind=kind, scale="head").diagnosis
    assert cause is not None
    assert cause.exact
    assert cause.family == family
    assert words in cause.words


def test_describe_condition_finds_blocks_of_any_size():
    assert describe_condition(lambda n: n <= 24 or n % 24 == 0) == (
        "for lengths that are not multiples of 24 from 25 tokens on"
    )


# -- designs behind a condition ----------------------------------------------------------------------------------------


def rotate(x, dims=None):
    dims = dims or x.shape[-1]
    t = x.shape[-2]
    angles = torch.arange(t).double()[:, None] * 1e4 ** (-torch.arange(0, dims, 2).double() / dims)
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    a, b = x[..., :dims].chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., dims:]), -1)


class NormedQueries(Layer):
    """Queries and keys are normalized; beyond 40 tokens a query sees one key ahead."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.q_norm, self.k_norm = nn.RMSNorm(dim // heads), nn.RMSNorm(dim // heads)

    def attend(self, q, k, v):
        t = q.shape[2]
        mask = torch.ones(t, t, dtype=torch.bool).tril(1 if t > 40 else 0)
        return masked(rotate(self.q_norm(q)), rotate(self.k_norm(k)), v, mask)


class PartlyRotated(Layer):
    """Half of the head dim is rotated; beyond 16 tokens only that of the queries."""

    def attend(self, q, k, v):
        half, t = q.shape[-1] // 2, q.shape[2]
        return masked(rotate(q, half), rotate(k, half) if t <= 16 else k, v, below(t))


def test_run_names_a_bug_behind_norms_of_queries_and_keys():
    cause = run(NormedQueries, kind="causal").diagnosis
    assert cause is not None
    assert (cause.family, cause.condition) == ("mask off by one", "from 41 tokens on")


def test_run_names_a_bug_of_partial_rotation():
    cause = run(PartlyRotated, kind="causal", position="relative").diagnosis
    assert cause is not None
    assert (cause.words, cause.condition) == ("only queries are rotated", "from 17 tokens on")


# -- state -------------------------------------------------------------------------------------------------------------


class KeptMask(Layer):
    """The mask of the longest call is kept, and cut at the wrong corner."""

    def __init__(self, dim=32, heads=4):
        super().__init__(dim, heads)
        self.kept = None

    def attend(self, q, k, v):
        t = q.shape[2]
        if self.kept is None or len(self.kept) < t:
            self.kept = below(t)
        return masked(q, k, v, self.kept[-t:, :t])


MASKS = {}


def attention_with_kept_masks(q, k, v):
    t = q.shape[2]
    longest = max([t, *MASKS])
    MASKS.setdefault(longest, below(longest))
    return masked(q, k, v, MASKS[longest][longest - t :, :t])


@pytest.mark.parametrize(("target", "place"), [(KeptMask, "`self.kept`"), (attention_with_kept_masks, "`MASKS`")])
def test_run_names_the_place_that_an_earlier_call_left_something_in(target, place):
    MASKS.clear()
    cause = run(target, TEXTBOOK).diagnosis
    assert cause is not None
    assert cause.family == "state"
    assert place in cause.words
    assert "after a longer call" in cause.mistake


# -- gradients, rows and scales ----------------------------------------------------------------------------------------


class WrittenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        weights = (q @ k.mT * scale).masked_fill(~below(q.shape[-2]), -torch.inf).softmax(-1)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    def backward(ctx, *gradients):
        (gradient,) = gradients
        q, k, v, weights = ctx.saved_tensors
        by_weights = gradient @ v.mT
        by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True))
        return by_scores @ k * q.shape[-1] ** -0.5, by_scores.mT @ q, weights.mT @ gradient


class WithWrittenBackward(Layer):
    def attend(self, q, k, v):
        return WrittenBackward.apply(q, k, v)


def test_compare_backward_names_the_argument_and_the_factor():
    parts = [torch.randn(2, 3, 5, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    found = compare_backward(WrittenBackward, lambda: WrittenBackward.apply(*parts))
    assert found == ["the gradient of k is √d times the derivative: the scale 1/√d is missing"]
    assert "apply" not in vars(WrittenBackward)


def test_run_names_what_is_wrong_in_a_written_backward_pass():
    cause = run(WithWrittenBackward, TEXTBOOK).diagnosis
    assert cause is not None
    assert cause.family == "wrong gradient"
    assert "the gradient of k is √d times" in cause.words


class DetachedKeys(Layer):
    def attend(self, q, k, v):
        return masked(q, k.detach(), v, below(q.shape[2]))


def test_run_names_the_rows_of_a_fused_projection_that_are_detached():
    cause = run(DetachedKeys, TEXTBOOK).diagnosis
    assert cause is not None
    assert cause.family == "detached"
    assert "keys" in cause.words


class BlocksOfRows(Layer):
    """Rows beyond the first four use the keys of the first ones."""

    def attend(self, q, k, v):
        outs = [
            masked(q[i : i + 4], k[: len(q[i : i + 4])], v[i : i + 4], below(q.shape[2])) for i in range(0, len(q), 4)
        ]
        return torch.cat(outs)


def test_run_finds_rows_that_only_a_larger_batch_gets_wrong():
    cause = run(BlocksOfRows, TEXTBOOK).diagnosis
    assert cause is not None
    assert (cause.family, cause.condition) == ("batch mixed", "from 5 rows on")
    assert "row 4" in cause.words


def scaled_by_keys(q, k, v):
    return (q @ k.mT / k.shape[-2] ** 0.5).softmax(-1) @ v


def test_run_finds_a_scale_by_the_number_of_keys():
    report = run(scaled_by_keys, kind="bidirectional", scale="head")
    assert not report.ok
    assert report.diagnosis is not None
    assert "number of keys" in report.diagnosis.words


class KeysForValues(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x):
        q, k, _ = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        return self.o(masked(q, k, k, below(x.shape[1])).transpose(1, 2).flatten(2))


def test_run_names_keys_that_stand_for_values_behind_unreached_parameters():
    cause = run(KeysForValues, TEXTBOOK).diagnosis
    assert cause is not None
    assert (cause.family, cause.exact) == ("inputs swapped", True)


class RoundedPositions(Layer):
    """Positions in bfloat16: those above 256 are rounded."""

    def attend(self, q, k, v):
        d = q.shape[-1]
        frequencies = 1e4 ** (-torch.arange(0, d, 2).double() / d)
        angles = torch.arange(q.shape[2], dtype=torch.bfloat16).double()[:, None] * frequencies
        cos, sin = angles.cos().to(q), angles.sin().to(q)
        q, k = (torch.cat((a * cos - b * sin, b * cos + a * sin), -1) for a, b in (x.chunk(2, -1) for x in (q, k)))
        return masked(q, k, v, below(q.shape[2]))


def test_run_finds_positions_that_are_rounded_beyond_256():
    cause = run(RoundedPositions, kind="causal", position="rotary").diagnosis
    assert cause is not None
    assert cause.family == "rotary"
    assert "bfloat16" in cause.words


def scaled_by_model_dim_and_masked_late(q, k, v):
    weights = (q @ k.mT / (q.shape[1] * q.shape[-1]) ** 0.5).softmax(-1)
    return weights * torch.ones(q.shape[-2], k.shape[-2], dtype=q.dtype).tril() @ v


def test_run_gives_the_fixes_of_both_bugs_where_two_act_together():
    cause = run(scaled_by_model_dim_and_masked_late, "textbook").diagnosis
    assert (cause.family, cause.also) == ("mask after softmax", "scale")
    assert BUG_FAMILIES["mask after softmax"] in cause.fix and BUG_FAMILIES["scale"] in cause.fix
