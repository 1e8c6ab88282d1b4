"""What attention refuses, and what it says then: what was expected and what came."""

import pytest
import torch

from qkv import attention, masks

pytestmark = pytest.mark.usefixtures("unchecked")

Z = torch.zeros
GOOD = (Z(2, 4, 5, 8), Z(2, 4, 6, 8), Z(2, 4, 6, 8))
INPUTS = {
    "axes that differ": (Z(4, 5, 8), Z(2, 4, 6, 8), Z(2, 4, 6, 8), r"q \(b, h, t, d\).*got q \(4, 5, 8\)"),
    "one axis": (Z(8), Z(8), Z(8), r"got q \(8,\)"),
    "five axes": (Z(1, 1, 1, 5, 8), Z(1, 1, 1, 5, 8), Z(1, 1, 1, 5, 8), r"got q \(1, 1, 1, 5, 8\)"),
    "whole numbers": (*(Z(5, 8, dtype=torch.long),) * 3, "one floating dtype; got q torch.int64"),
    "dtypes that differ": (Z(5, 8), Z(5, 8).double(), Z(5, 8), "q torch.float32, k torch.float64"),
    "widths that differ": (Z(5, 8), Z(5, 7), Z(5, 8), "the same width d; got 8 and 7"),
    "no width": (Z(5, 0), Z(5, 0), Z(5, 8), r"a width d of at least 1; got q \(5, 0\)"),
    "keys without values": (Z(5, 8), Z(6, 8), Z(7, 8), "each key needs a value; got 6 keys and 7 values"),
    "batches that differ": (Z(2, 5, 8), Z(3, 5, 8), Z(3, 5, 8), r"the same batch size b; got q \(2, 5, 8\)"),
    "heads of keys and values": (Z(1, 4, 5, 8), Z(1, 2, 5, 8), Z(1, 4, 5, 8), "the same number of heads"),
    "groups that do not divide": (
        *(Z(1, 4, 5, 8), Z(1, 3, 5, 8), Z(1, 3, 5, 8)),
        r"4 heads of queries do not share 3 heads of keys evenly; numbers of key heads that fit: \[1, 2, 4\]",
    ),
}
OPTIONS = {
    "dropout of 1": ({"dropout": 1.0}, "from 0 to below 1; got 1.0"),
    "dropout below 0": ({"dropout": -0.1}, "from 0 to below 1; got -0.1"),
    "infinite beta": ({"scale": float("inf")}, "beta is a finite number; got inf.*hard=True"),
    "beta that is not a number": ({"scale": float("nan")}, "got nan"),
    "beta of another shape": ({"scale": Z(3, 1, 1)}, r"beta of shape \(3, 1, 1\) does not broadcast.*\(2, 4, 5, 1\)"),
    "beta of each key": ({"scale": Z(5, 6)}, r"beta of shape \(5, 6\)"),
    "floating mask": ({"mask": Z(5, 6)}, "a mask is boolean, True = may attend; got torch.float32.*bias="),
    "list as a mask": ({"mask": [[True]]}, "a boolean tensor or a Mask; got list"),
    "mask of one axis": ({"mask": Z(6).bool()}, r"ends in \(queries, keys\); got shape \(6,\)"),
    "mask of other keys": ({"mask": Z(5, 7).bool()}, "for 5 queries and 7 keys; there are 5 queries and 6 keys"),
    "mask of other queries": ({"mask": masks.causal(4, 6)}, "for 4 queries and 6 keys; there are 5 queries"),
    "lazy mask of one key": ({"mask": masks.causal(5, 1)}, "for 5 queries and 1 keys; there are 5 queries and 6"),
    "lazy mask of one query": (
        {"mask": masks.causal(1, 6) & Z(1, 6).bool()},
        "for 1 queries and 6 keys; there are 5 queries and 6",
    ),
    "flags of one key": ({"mask": masks.padding(Z(2, 1).bool())}, "for any number of queries and 1 keys; there"),
    "mask of another batch": ({"mask": Z(3, 1, 5, 6).bool()}, r"\(3, 1, 5, 6\) does not broadcast.*\(2, 4, 5, 6\)"),
    "flags of another batch": ({"mask": masks.padding(Z(3, 6).bool())}, r"does not broadcast.*\(2, 4, 5, 6\)"),
    "masks of two batches": (
        {"mask": masks.padding(Z(2, 6).bool()) & Z(3, 1, 5, 6).bool()},
        r"\(3, 1, 5, 6\) does not broadcast.*\(2, 4, 5, 6\)",
    ),
    "mask of five axes": ({"mask": Z(1, 1, 1, 5, 6).bool()}, "does not broadcast"),
    "boolean bias": ({"bias": Z(5, 6).bool()}, "bias is added to the scores.*got torch.bool.*allowed="),
    "bias of another shape": ({"bias": Z(3, 5, 6)}, r"bias of shape \(3, 5, 6\) does not broadcast"),
    "mask as a bias": ({"bias": masks.causal(5, 6)}, "a floating tensor or a lazy Bias; got Band.*allowed="),
    "list as a bias": ({"bias": [[0.0]]}, "a floating tensor or a lazy Bias; got list"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_do_not_fit_are_named_with_their_shapes(name):
    *inputs, message = INPUTS[name]
    with pytest.raises(ValueError, match=message):
        attention(*inputs)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_fit_are_named_with_what_would(name, weights):
    options, message = OPTIONS[name]
    with pytest.raises(ValueError, match=message):
        attention(*GOOD, **options, return_weights=weights)


def test_inputs_on_two_devices_are_named():
    with pytest.raises(ValueError, match="on one device; got q on cpu, k on meta, v on cpu"):
        attention(Z(5, 8), Z(5, 8, device="meta"), Z(5, 8))
