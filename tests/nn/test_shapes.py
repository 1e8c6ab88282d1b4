"""split_heads, merge_heads, repeat_heads (grouped-query attention) and divisors."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.nn.shapes import divisors, merge_heads, repeat_heads, split_heads


def test_split_heads_gives_head_i_the_features_from_i_d_on(randn):
    x = randn(2, 5, 12)
    heads = split_heads(x, 3)
    for i in range(3):
        assert torch.equal(heads[:, i], x[..., 4 * i : 4 * (i + 1)])


@settings(deadline=None, max_examples=30, derandomize=True, database=None)
@given(st.integers(0, 3), st.integers(0, 5), st.integers(1, 4), st.integers(1, 4))
def test_merge_heads_is_the_inverse_of_split_heads(b, t, heads, dim):
    x = torch.randn(b, t, heads * dim)
    assert torch.equal(merge_heads(split_heads(x, heads)), x)


def test_repeat_heads_gives_neighboring_heads_the_same_group(randn):
    x = randn(2, 3, 5, 4)
    repeated = repeat_heads(x, 6)
    assert all(torch.equal(repeated[:, i], x[:, i // 2]) for i in range(6))
    assert repeat_heads(x, 3) is x


def test_divisors_lists_all_divisors():
    assert all(divisors(n) == [d for d in range(1, n + 1) if n / d == n // d] for n in range(1, 60))
