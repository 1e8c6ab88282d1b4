"""Why each claim should hold, and how its experiment tests it: what `qkv claims show` prints. Imports no torch."""

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
        "The derivative of a softmax weight is α_i(1 − α_i).",
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
    "calm-head": (
        "The scores of a and b differ by noise of variance of order αβ².",
        "Draw keys; weight and variance over α and β.",
    ),
    "one-head-variance": (
        "The noise along μ_a multiplies the score of a by a random factor, and β amplifies it.",
        "Draw keys; histogram and variance of the weight for several β.",
    ),
    "two-heads": (
        "Each head picks one key, whatever its length, while q·k_a > 0.",
        "Variance relative to one head, over all draws and where q·k_a > 0.",
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
        "Closed form of the best single head; train one and two heads from several starts.",
    ),
    "equivariance": (
        "No operation refers to the place of a token.",
        "Permute tokens; compare outputs and maps; add positions or a causal mask.",
    ),
    "values-only": (
        "x_2 is orthogonal to the others, so it scores highest with itself.",
        "Compute c_2 for several β; add u_d or u_c to x_2.",
    ),
    "kqv": (
        "Q sends a token to the key that is wanted, V keeps one direction of the value.",
        "Compute c_1 and c_2 for several β.",
    ),
    "identity": (
        "Other tokens have a score at least β(1 − c) lower, so all of them together have a relative weight of at most "
        "(n − 1)e^(−β(1 − c)).",
        "Orthonormal tokens against the formula; 4d random unit vectors in d dimensions against the bound, at the "
        "given β and at the β of their margin.",
    ),
    "convolution": (
        "A head that attends to one offset shifts the tokens; the sum over heads is the kernel.",
        "Build heads for each offset; compare with conv1d and conv2d, inside and at the border.",
    ),
    "positions": (
        "Relative schemes use i − j only; rounding of large angles breaks it in float32.",
        "Shift all positions; train six schemes on a fixed lag and a copy, and judge only those that learned the lag "
        "at the training length; token vectors are multiplied by √dim where sinusoids are added.",
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
        "Compare with 1×1 convolutions and one token at a time; train XOR with and without it.",
    ),
    "path-length": (
        "An RNN multiplies n Jacobians; attention passes the gradient in one step, times the weight: 1/n if uniform, "
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
    "pretraining": (
        "The places of the asked people occur only in the lines that were read.",
        "Pretrain on all lines, on lines without the asked people's, or on none; fine-tune on others (rehearsing the "
        "lines read); compare with chance and with the most frequent place.",
    ),
    "made-up": (
        "The model was trained to answer every question, never to abstain.",
        "Ask about known people and new names; compare confidences; threshold; look-up.",
    ),
    "worked-example": (
        "Products of fractions are fractions; only exp is not.",
        "Exact arithmetic up to the scores, then float64, against the printed figures.",
    ),
    "batch-transpose": (
        ".T reverses all axes.",
        "Gradients from one text of a batch to the others, and an input where .T is an error.",
    ),
}
