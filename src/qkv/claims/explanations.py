"""Why each claim should hold, how its experiment tests it, and what each wrong implementation does wrong.

`qkv claims show` prints them. Imports no torch.
"""

REASONS: dict[str, tuple[str, str]] = {
    "shapes": (
        "Column j of KᵀQ has the scores of query j; the transpose of a product reverses it.",
        "Compare rows, columns and three plain loops.",
    ),
    "distribution": (
        "exp is positive, and each row is divided by its sum.",
        "Rows of extreme, equal and single scores: sign and sum.",
    ),
    "beta": (
        "β multiplies score differences, and dS/dβ = −β Var(score) ≤ 0.",
        "Entropy and its slope by autograd against the closed form.",
    ),
    "scale": (
        "A sum of d independent products of variance 1 has variance d; large scores saturate the softmax.",
        "Draw q and k for growing d: variance, largest weight, gradient, with and without 1/√d.",
    ),
    "copy": (
        "Every other weight is at most e^(−margin) of the copied one.",
        "Copy a vertex of the hull; compare the error with its bound; try a key inside the hull.",
    ),
    "average": (
        "q·k is β for the two keys and 0 for the others.",
        "Orthonormal keys: weights against the closed form, with scale 1 and 1/√d.",
    ),
    "diffuse": (
        "All scores are 0, so all weights are 1/m.",
        "Compare with average pooling and a linear layer with equal weights.",
    ),
    "hard-soft": (
        "As β grows the largest score takes all the weight; argmax is constant almost everywhere.",
        "Compare soft attention at a large β with hard attention; gradients by autograd; a tie.",
    ),
    "perturb-key": (
        "Moving the score of key i moves its weight by βα_i(1 − α_i) and each other weight by −βα_iα_l, per unit.",
        "Move one key by ε and by noise; compare with the first and second order.",
    ),
    "perturb-query": (
        "A query enters its own row only.",
        "Move one query; compare all other rows bit by bit.",
    ),
    "scale-key": (
        "A factor α multiplies the score: it rises only if it is positive.",
        "Scale keys in random draws; split by the sign of q·k.",
    ),
    "key-bias": (
        "q·(k_i + b) = q·k_i + q·b: the same number on every score of a row, which the softmax ignores.",
        "Add a vector to all keys, queries or values; gradient by autograd; the same with RoPE.",
    ),
    "calm-head": (
        "The scores of a and b differ by noise of variance of order αβ².",
        "Draw keys; weight and variance over α and β.",
    ),
    "one-head-variance": (
        "The noise along μ_a multiplies the score of a by a random factor, and β amplifies it.",
        "Draw 8 keys; histogram and variance of the weight for several β, and that of the logistic formula for two "
        "keys.",
    ),
    "two-heads": (
        "Each head picks one key, whatever its length, while q·k_a is well above 0.",
        "Variance relative to one head, over all draws and where q·k_a > 0; 8 keys, orthonormal values.",
    ),
    "two-heads-wrong": (
        "The first head averages a and b, the second picks a: the mean is ¾ and ¼.",
        "Draw calm and noisy keys; mean weights and variance.",
    ),
    "heads-formula": (
        "A projection of all heads is one matrix, and a matrix per token is a 1×1 convolution.",
        "Compare with torch.nn.MultiheadAttention and with plain and grouped convolutions.",
    ),
    "heads-count": (
        "One softmax gives non-negative weights to one value map; a difference needs a second map.",
        "Closed form of the best single head for independent values; train one and two heads from several starts.",
    ),
    "heads-are-channels": (
        "Joining heads and projecting is Σ_h W_O^h head_h, and a sum does not depend on the order of its terms; the "
        "softmax of q·k is not linear in x, a kernel is.",
        "Sum single heads; permute heads with their columns of W_O, and channels with those of a 1×1 convolution; test "
        "additivity of both.",
    ),
    "equivariance": (
        "No operation refers to the place of a token.",
        "Permute tokens; compare outputs and maps; add positions or a causal mask.",
    ),
    "values-only": (
        "x_2 is orthogonal to the others, so it scores highest with itself: β² against 0, and 2β² against β² after "
        "adding u_d or u_c.",
        "Compute c_2 for several β; add u_d or u_c to x_2. Errors are relative to ‖u‖ = β.",
    ),
    "kqv": (
        "Q sends a token to the key that is wanted (Qx_2 = β²u_d, Qx_1 = β²u_c), V keeps the directions of the value "
        "that are wanted.",
        "Compute c_1 and c_2 for several β, with Q and with Q/β². Errors are relative to ‖u‖ = β.",
    ),
    "identity": (
        "Other tokens have a score at least β(1 − ρ) lower, so all of them together have a relative weight of at most "
        "(n − 1)e^(−β(1 − ρ)), with ρ the largest cosine of two tokens.",
        "Orthonormal tokens against the formula; 4d random unit vectors in d dimensions against the bound, at the "
        "given β and at the β of their margin.",
    ),
    "convolution": (
        "A head that attends to one offset shifts the tokens; the sum over heads is the kernel.",
        "Build heads for each offset; compare with conv1d and conv2d, inside and at the border.",
    ),
    "positions": (
        "Relative schemes use i − j only; rounding of large angles breaks it in float32.",
        "Shift all positions, relative and added to the tokens; train six schemes on a fixed lag and a copy, and "
        "judge only those that learned the lag at the training length; token vectors are multiplied by √dim where "
        "sinusoids are added.",
    ),
    "streaming": (
        "Under a chunk mask no output depends on a later chunk, at any depth; sliding look-ahead adds up.",
        "Feed a stream with a cache; compare with the offline pass; measure the latency by gradients.",
    ),
    "synthesizer": (
        "A row predicted from the query alone cannot depend on what the keys are.",
        "Train both on associative recall with random and with fixed key order.",
    ),
    "cost": (
        "Scores are n² numbers; a fused kernel keeps one tile of them.",
        "Measure memory and time for three lengths; fit the exponent.",
    ),
    "feed-forward": (
        "The same matrix acts on each token, and the activation makes it non-linear.",
        "Compare with 1×1 convolutions and one token at a time; train XOR with and without it; solve XOR by a layer "
        "norm.",
    ),
    "path-length": (
        "An RNN multiplies n Jacobians, of norm below 1 as it is started here; the cell of an LSTM is a sum whose "
        "Jacobian is its forget gate; attention passes the gradient in one step, times the weight: 1/n if uniform, "
        "constant if sharp.",
        "Gradient from the last output to the first input over n: RNN, LSTM, and a transformer at initialization, "
        "with uniform attention and with a sharp head; several starts.",
    ),
    "residual-norm": (
        "With x + f(x) the Jacobian is I + f′, so a path without factors remains; attention averages, so tokens "
        "without it become alike; norms bound the growth of sums.",
        "Stacks with both (pre- and post-norm), one or none; gradient at the input relative to pre-norm with both, "
        "token diversity by layer, several starts.",
    ),
    "warm-up": (
        "At the start Adam's second moments come from few gradients, so its steps have full size in all directions, "
        "and in post-norm the gradients near the output are large: such steps saturate layers for good.",
        "Train deep stacks to attend to the previous token with Adam: post-norm with and without warm-up, pre-norm "
        "without; several starts.",
    ),
    "residual-dropout": (
        "x + dropout(f(x)) multiplies f(x) by 0 or 1/(1 − p), with mean 1, and x by 1.",
        "Draw a pre-norm block many times; compare what is added with 0 and f(x)/(1 − p), its mean with f(x), and the "
        "evaluation mode with x + f(x).",
    ),
    "similar-to-rnn": (
        "Without the softmax Σ_j (q·k_j) v_j = (Σ_j v_j k_jᵀ) q: the sum is a state that each token adds to. With it "
        "the keys must be kept.",
        "Linear attention by steps and at once; softmax attention by steps with a KV cache and at once under a "
        "causal mask; numbers in the state.",
    ),
    "similar-to-mlp": (
        "W_2 σ(W_1 x) = Σ_i σ(k_i·x) v_i with rows k_i of W_1 and columns v_i of W_2; a single token has weight 1.",
        "Work a feed-forward network out as a memory; attention to constant keys and values as two layers; "
        "additivity of self-attention for one and for several tokens.",
    ),
    "encoder-decoder": (
        "A causal mask removes the edges to later tokens before the softmax.",
        "Influence maps by gradients.",
    ),
    "two-uses": (
        "Meaning needs both sides of a token; generation must not see the answer.",
        "Train both on a synthetic language; test each on both tasks, and with the other mask.",
    ),
    "versus-rnn-mlp": (
        "Projections are shared over positions and no position waits for another; an MLP has a weight for each "
        "position.",
        "Count parameters and the longest chain of operations over the length.",
    ),
    "dropout-weights": (
        "Dropout multiplies each weight by 0 or 1/(1 − p), with mean 1.",
        "Row sums over many draws: mean and s.d. against the formula.",
    ),
    "patches-are-convolution": (
        "Windows with stride p do not overlap: each is multiplied by the same matrix.",
        "Compare with conv2d, and with another flattening order.",
    ),
    "receptive-field": (
        "Attention connects all pairs; a kernel connects neighbors.",
        "Gradients of the center by layer; shift the input.",
    ),
    "position-maps": (
        "Near patches are seen together, so their position vectors get similar gradients, whatever the attention is.",
        "Train ViTs; rank correlation of similarity and nearness, compared with an untrained table and with uniform "
        "attention by an interval over starts.",
    ),
    "class-token": (
        "The class token is the same for every image; only attention brings the image in.",
        "Train; mask its edges to the patches; compare with mean pooling.",
    ),
    "data-regimes": (
        "Locality and translation equivariance are built into a CNN; a ViT learns them from data.",
        "Train both to convergence on three numbers of images, several starts.",
    ),
    "data-regimes-real": (
        "Locality and translation equivariance are true of real images as well; a ViT learns them from data.",
        "Train both to convergence on three nested sets of bundled handwritten digits, or of ten classes of --data "
        "at 16×16 pixels; test on other images.",
    ),
    "pretraining": (
        "The places of the asked people occur only in the lines that were read.",
        "Pretrain on all lines, on lines without the asked people's, or on none; fine-tune on others (rehearsing the "
        "lines read); compare with chance and with the most frequent place.",
    ),
    "made-up": (
        "The model was trained to answer every question, never to abstain.",
        "Ask about known people, new combinations of known names, and names never seen; compare confidences; "
        "threshold; look-up.",
    ),
    "worked-example": (
        "Products of fractions are fractions; only exp is not.",
        "Exact arithmetic up to the scores, then float64, against the printed figures.",
    ),
    "batch-transpose": (
        ".T reverses all axes.",
        "Gradients from one text of a batch to the others, and the sizes for which x @ x.T runs.",
    ),
}

# the names of `--wrong` (qkv.claims.mutants): what is wrong
WRONG_IMPLEMENTATIONS = {
    "wrong-axis": "the softmax runs over the queries",
    "no-scale": "the scale 1/√d is missing",
    "scale-1/d": "the scale is 1/d, not 1/√d",
    "beta-ignored": "β is not used: always 1/√d",
    "beta-squared": "β is applied twice",
    "uniform": "all keys get the same weight",
    "argmax": "always all weight on the best key",
    "never-hard": "hard attention stays soft",
    "not-normalized": "exp without dividing by the sum",
    "no-shift": "exp without subtracting the largest score",
    "signed": "no softmax: the scores are the weights",
    "itself": "each token attends only to itself",
    "unmasked": "the mask is ignored",
    "mask-after-softmax": "the mask is applied after the softmax",
    "mask-one-late": "the mask lets one key too many through",
    "v-for-k": "values are used as keys",
    "k-for-v": "keys are used as values",
    "dropout-renormalized": "weights are normalized again after dropout",
    "dropout-unscaled": "weights are not scaled up by dropout",
    "dropout-in-weights": "the returned weights include dropout",
    "written-out": "right, but it stores all weights: only its memory is wrong",
    "linear-feed-forward": "the feed-forward network has no nonlinearity",
    "mixing-feed-forward": "the feed-forward network reads the previous token",
    "feed-forward-by-position": "the feed-forward network is a different one at each position",
    "rows-first-patches": "patches are flattened in another order than the weights",
    "learned-positions": "positions are learned for one length",
    "frozen-positions": "the position table is not trained",
    "dropout-on-stream": "dropout is applied to the residual stream",
    "dropout-in-evaluation": "dropout stays on in evaluation",
    "no-warm-up": "the first step has the full learning rate",
}
