"""Ways to break a claim, in words: conditions that overturn it, and wrong implementations."""

# claim: (knob, value, what the change means); each of them changes the verdict
BREAKS: dict[str, tuple[tuple[str, float, str], ...]] = {}

# a wrong implementation of qkv.claims.mutants: what is wrong with it
WRONG = {
    "wrong-axis": "the softmax runs over the queries",
    "no-scale": "the scale 1/√d is forgotten",
    "scale-1/d": "the scale is 1/d, not 1/√d",
    "beta-ignored": "β is not used: always 1/√d",
    "beta-squared": "β is applied twice",
    "uniform": "all keys get the same weight",
    "argmax": "the best key takes all, always",
    "never-hard": "the hard choice stays soft",
    "not-normalised": "exp without dividing by the sum",
    "no-shift": "exp without subtracting the largest score",
    "signed": "no softmax: the scores are the weights",
    "itself": "each token attends to itself alone",
    "unmasked": "the mask is forgotten",
    "mask-after-softmax": "the mask comes after the softmax",
    "mask-one-late": "the mask lets one key too many through",
    "v-for-k": "values are used as keys",
    "k-for-v": "keys are used as values",
    "dropout-renormalised": "dropped weights are made to sum to 1 again",
    "dropout-unscaled": "what survives dropout is not scaled up",
    "dropout-in-weights": "the weights returned have dropout in them",
    "written-out": "right, but it stores every weight",
    "linear-feed-forward": "the feed-forward network has no non-linearity",
    "mixing-feed-forward": "the feed-forward network reads the token before",
    "feed-forward-by-place": "the feed-forward network is another one at each place",
    "rows-first-patches": "patches are flattened in another order than the weights",
    "learned-positions": "positions are learned for one length",
    "frozen-positions": "the table of positions learns nothing",
}
