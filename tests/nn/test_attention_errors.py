"""Error messages of attention: what was expected and what came."""

import pytest
import torch

from qkv import attention, masks

pytestmark = pytest.mark.usefixtures("unchecked")

Z = torch.zeros
GOOD = (Z(2, 4, 5, 8), Z(2, 4, 6, 8), Z(2, 4, 6, 8))
INPUTS = {
    "axes that differ": (Z(4, 5, 8), Z(2, 4, 6, 8), Z(2, 4, 6, 8), r"query \(b, h, t, d\).*got query \(4, 5, 8\)"),
    "one axis": (Z(8), Z(8), Z(8), r"got query \(8,\)"),
    "five axes": (Z(1, 1, 1, 5, 8), Z(1, 1, 1, 5, 8), Z(1, 1, 1, 5, 8), r"got query \(1, 1, 1, 5, 8\)"),
    "integers": (*(Z(5, 8, dtype=torch.long),) * 3, "one floating dtype, got query torch.int64"),
    "dtypes that differ": (Z(5, 8), Z(5, 8).double(), Z(5, 8), "query torch.float32, key torch.float64"),
    "head dims that differ": (Z(5, 8), Z(5, 7), Z(5, 8), r"the same head dim d, got query \(5, 8\), key \(5, 7\)"),
    "no features": (Z(5, 0), Z(5, 0), Z(5, 8), r"head dim d must be at least 1, got query \(5, 0\)"),
    "keys without values": (Z(5, 8), Z(6, 8), Z(7, 8), "one value per key, got 6 keys and 7 values"),
    "batches that differ": (Z(2, 5, 8), Z(3, 5, 8), Z(3, 5, 8), r"the same batch size b, got query \(2, 5, 8\)"),
    "heads of keys and values": (Z(1, 4, 5, 8), Z(1, 2, 5, 8), Z(1, 4, 5, 8), "same number of heads, got 2 and 4"),
    "groups that do not divide": (
        *(Z(1, 4, 5, 8), Z(1, 3, 5, 8), Z(1, 3, 5, 8)),
        r"4 query heads cannot share 3 key heads evenly; try \[1, 2, 4\]",
    ),
}
OPTIONS = {
    "dropout of 1": ({"dropout_p": 1.0}, r"in \[0, 1\), got 1.0"),
    "dropout below 0": ({"dropout_p": -0.1}, r"in \[0, 1\), got -0.1"),
    "infinite scale": ({"scale": float("inf")}, "scale must be a finite number, got inf.*hard=True"),
    "scale that is not a number": ({"scale": float("nan")}, "got nan"),
    "scale of another shape": ({"scale": Z(3, 1, 1)}, r"scale of shape \(3, 1, 1\) does not broadcast.*\(2, 4, 5, 1\)"),
    "scale of each key": ({"scale": Z(5, 6)}, r"scale of shape \(5, 6\)"),
    "float mask": ({"mask": Z(5, 6)}, r"mask must be boolean \(True = may attend\), got torch.float32.*bias="),
    "list as a mask": ({"mask": [[True]]}, "a boolean tensor or a Mask, got list"),
    "mask of one axis": ({"mask": Z(6).bool()}, r"must be \(queries, keys\), got shape \(6,\)"),
    "mask of other keys": ({"mask": Z(5, 7).bool()}, "for 5 queries and 7 keys, got 5 queries and 6 keys"),
    "mask of other queries": ({"mask": masks.causal(4, 6)}, "for 4 queries and 6 keys, got 5 queries"),
    "lazy mask of one key": ({"mask": masks.causal(5, 1)}, "for 5 queries and 1 keys, got 5 queries and 6"),
    "lazy mask of one query": (
        {"mask": masks.causal(1, 6) & Z(1, 6).bool()},
        "for 1 queries and 6 keys, got 5 queries and 6",
    ),
    "padding mask of one key": ({"mask": masks.padding(Z(2, 1).bool())}, "for any number of queries and 1 keys, got"),
    "mask of another batch": ({"mask": Z(3, 1, 5, 6).bool()}, r"\(3, 1, 5, 6\) does not broadcast.*\(2, 4, 5, 6\)"),
    "padding of another batch": ({"mask": masks.padding(Z(3, 6).bool())}, r"does not broadcast.*\(2, 4, 5, 6\)"),
    "masks of two batches": (
        {"mask": masks.padding(Z(2, 6).bool()) & Z(3, 1, 5, 6).bool()},
        r"\(3, 1, 5, 6\) does not broadcast.*\(2, 4, 5, 6\)",
    ),
    "mask of five axes": ({"mask": Z(1, 1, 1, 5, 6).bool()}, "does not broadcast"),
    "boolean bias": ({"bias": Z(5, 6).bool()}, "bias must be a floating tensor, got torch.bool.*mask="),
    "bias of another shape": ({"bias": Z(3, 5, 6)}, r"bias of shape \(3, 5, 6\) does not broadcast"),
    "mask as a bias": ({"bias": masks.causal(5, 6)}, "a floating tensor or a lazy Bias, got BandMask.*mask="),
    "list as a bias": ({"bias": [[0.0]]}, "a floating tensor or a lazy Bias, got list"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_attention_rejects_inputs_that_do_not_fit_and_names_their_shapes(name):
    *inputs, message = INPUTS[name]
    with pytest.raises(ValueError, match=message):
        attention(*inputs)


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_attention_rejects_options_that_do_not_fit(name, weights):
    options, message = OPTIONS[name]
    with pytest.raises(ValueError, match=message):
        attention(*GOOD, **options, return_weights=weights)


def test_attention_rejects_inputs_on_two_devices():
    with pytest.raises(ValueError, match="on one device, got query on cpu, key on meta, value on cpu"):
        attention(Z(5, 8), Z(5, 8, device="meta"), Z(5, 8))
