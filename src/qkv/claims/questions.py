"""Questions that courses ask, with the claim that answers each, the answer and the usual mistake.

The command `qkv questions` and the page docs/questions.md show this table.
"""

from dataclasses import dataclass

from qkv.claims.catalog import read_catalog
from qkv.claims.courses import has_words


@dataclass(frozen=True)
class CourseQuestion:
    """A question, the claim whose experiment answers it, the answer, and the usual mistake ("" if there is none)."""

    question: str
    claim: str
    answer: str
    mistake: str = ""

    @property
    def command(self) -> str:
        return f"qkv claims run {self.claim}"


QUESTIONS = (
    CourseQuestion(
        "What shape is H = V softmax(KᵀQ), and do rows give the same?",
        "shapes",
        "t×n: a column for each query; rows and columns give the same numbers",
        "inputs as columns times a matrix made for rows: an error, or (n = d) silently wrong",
    ),
    CourseQuestion(
        "Why can the weights be called a distribution?",
        "distribution",
        "not negative, sum 1, for any scores",
        "exponentials without subtracting the largest score: nan at 10⁴",
    ),
    CourseQuestion(
        "What does β (the inverse temperature) do?",
        "beta",
        "entropy S falls from log m to 0; dS/dβ = −β Var(score)",
        "expecting ties to be broken: they share for every β",
    ),
    CourseQuestion(
        "Why divide by √d?",
        "scale",
        "q·k has variance d; without it the softmax saturates and its gradient vanishes",
        '"to avoid overflow", or "it clips"; and the variance is d only for zero means',
    ),
    CourseQuestion(
        "When does attention copy one value?",
        "copy",
        "in the limit of a large margin β(k_j − k_i)·q over all others; the error is at most (m−1)·e^(−margin)·"
        "max‖v_i − v_j‖",
        '"the other keys must oppose the query": they need only be less alike',
    ),
    CourseQuestion(
        "How does attention average two values?",
        "average",
        "q = β(k_a + k_b), orthonormal keys: e^β/(m−2+2e^β) each",
        "forgetting that the layer divides by √d: 0.376, not 0.4999, at β = 10",
    ),
    CourseQuestion(
        "When is attention average pooling?",
        "diffuse",
        "when all scores of the query are equal: β = 0, q = 0, or q orthogonal to all keys",
        '"a small β makes the output small": it makes it the mean of the values',
    ),
    CourseQuestion(
        "Which kinds of attention are there: soft or hard, self or cross?",
        "hard-soft",
        "four kinds; hard is the limit of soft for β → ∞, except on a tie: hard picks one key, soft shares",
        "training hard attention by its gradient: queries and keys get none",
    ),
    CourseQuestion(
        "What happens if one key moves a little?",
        "perturb-key",
        "every output can move, by β α_i (v_i − h)(q·ε) to first order; hardly where α_i is near 0 or 1",
        '"zero-mean noise cancels": a drift of second order stays',
    ),
    CourseQuestion(
        "What happens if one query moves?",
        "perturb-query",
        "its own output only",
        "taking the token for the query: in self-attention a token is query, key and value, so moving it moves all "
        "outputs",
    ),
    CourseQuestion("Does a longer key get more weight?", "scale-key", "only where q·k > 0", '"larger keys win"'),
    CourseQuestion(
        "What does a bias of the key projection do?",
        "key-bias",
        "nothing: it adds q·b to every score of a row; its gradient is 0. Under RoPE it acts",
        "leaving out the bias of the values, too: that one is added to every output",
    ),
    CourseQuestion(
        "Does one head average reliably if keys vary a little?",
        "calm-head",
        "yes while αβ² ≪ 1",
        '"the larger β, the better": a longer query amplifies the noise of the keys',
    ),
    CourseQuestion(
        "What happens to one head if one key varies along itself?",
        "one-head-variance",
        "the output flips between v_a and v_b once β is well above 2; the variance of the weight nears ¼",
        '"the mean is right, so the head works": for large β almost every single output is wrong',
    ),
    CourseQuestion(
        "How do two heads help against noisy keys?",
        "two-heads",
        "one asks for each key: a twentieth of the variance at β = 20 (8 keys, orthonormal values)",
        "forgetting the 7.86 % of draws in which k_a points away",
    ),
    CourseQuestion(
        "Do q_1 = β(μ_a+μ_b), q_2 = β(μ_a−μ_b) average v_a and v_b?",
        "two-heads-wrong",
        "no: ¾ v_a + ¼ v_b",
        "this answer itself",
    ),
    CourseQuestion(
        "Is multi-head attention h small attentions?",
        "heads-formula",
        "yes, joined and projected; projections are 1×1 convolutions",
        "grouped convolutions on x: each head would read its slice only",
    ),
    CourseQuestion(
        "What can two heads do that one cannot?",
        "heads-count",
        "v_a − v_b: the weights of one head are not negative and share a value map, so its relative squared error is "
        "at least ½",
        '"more heads are only faster"',
    ),
    CourseQuestion(
        "What do heads share with the channels of a convolution?",
        "heads-are-channels",
        "parallel maps with their own weights, in any order, summed by a 1×1 map; but a head's weights depend on the "
        "input",
        '"a head is a kernel": a kernel is fixed, and may be negative',
    ),
    CourseQuestion(
        "What does a permutation of the tokens do?",
        "equivariance",
        "permutes the outputs; the attention map becomes P S Pᵀ",
        '"the attention map stays S"; or testing equivariance alone, which a softmax over the wrong axis passes',
    ),
    CourseQuestion(
        "What can attention do with q = k = v = x?",
        "values-only",
        "c_2 ≈ u_a; adding u_d or u_c to x_2 gives u_a + u_d or u_a + u_c, never u_b",
        '"adding u_d makes it attend to x_1": it still attends to itself (2β² against β²)',
    ),
    CourseQuestion(
        "Which K, Q, V give u_b and u_b − u_c?",
        "kqv",
        "V = (u_b u_bᵀ − u_c u_cᵀ)/β², K = I, Q = u_d u_aᵀ + u_c u_dᵀ: scores β⁴ on the wanted token, 0 elsewhere",
        "forgetting ‖u‖² = β² in V: outputs β² times too long",
    ),
    CourseQuestion(
        "Can self-attention be the identity?",
        "identity",
        "where the margin β(1 − ρ) is large, ρ the largest cosine of two tokens; orthonormal: e^β/(e^β+n−1)",
        '"only for n ≤ d": 32 vectors in 8 dimensions separate at a larger β',
    ),
    CourseQuestion(
        "Is attention a convolution?",
        "convolution",
        "K heads at K offsets (K odd), where the kernel fits, if the value maps have full rank",
        '"one head is enough": it has one value map and no negative weights; and the border, where weights still sum '
        "to 1",
    ),
    CourseQuestion(
        "Relative or absolute positions?",
        "positions",
        "relative scores do not change by a shift, absolute ones do (sinusoids, too, once they are projected); some "
        "relative schemes carry a fixed lag to longer texts, not all",
        '"relative encodings always generalize to longer texts"; angles in float32',
    ),
    CourseQuestion(
        "Can attention run in real time?",
        "streaming",
        "chunk masks wait chunk − 1, sliding ones layers × look-ahead",
        "a norm over time sees the future",
    ),
    CourseQuestion(
        "Must attention compare queries with keys?",
        "synthesizer",
        "for associative recall, yes",
        "a fixed order of keys hides the difference",
    ),
    CourseQuestion(
        "What does attention cost?",
        "cost",
        "n²d time for QKᵀ and AV each (a layer 12nd² + 2n²d, a simple RNN layer 2nd²); n² memory plain, n fused",
        "a full mask makes fused memory n² again; and parallel is not cheaper: an RNN layer does less work at every n",
    ),
    CourseQuestion(
        "What is the feed-forward network for?",
        "feed-forward",
        "non-linear functions of one token, the same at each position: for one token the rest of a layer without "
        "norms is linear",
        '"a network of its own at each position"',
    ),
    CourseQuestion(
        "How far do gradients reach, in an RNN and in a transformer?",
        "path-length",
        "as 1/n under uniform attention, level through a sharp head; exponentially in a simple RNN as it is usually "
        "started, hardly in an LSTM whose forget gates are near 1",
        '"they stay level", or "they fall as 1/n": it depends on how sharply the head attends',
    ),
    CourseQuestion(
        "Why residual connections and layer norms?",
        "residual-norm",
        "without residuals gradients at the input vanish and tokens become identical, without norm they explode",
        "norms alone solve depth",
    ),
    CourseQuestion(
        "Why warm up the learning rate?",
        "warm-up",
        "a deep post-norm stack hardly leaves the loss of a guess at a rate at which it learns after a warm-up; "
        "pre-norm learns at that rate without",
        '"warm-up is always needed": it depends on depth, rate and the place of the norm',
    ),
    CourseQuestion(
        "What does residual dropout drop?",
        "residual-dropout",
        "elements of what a sublayer adds, x + dropout(f(x)), in training only",
        "dropping the stream itself: after L layers (1 − p)^L of it is left",
    ),
    CourseQuestion(
        "Who sees whom in the encoder and in the decoder?",
        "encoder-decoder",
        "encoder: all; decoder: past and source",
        "masking after the softmax: the future leaks through the sum",
    ),
    CourseQuestion(
        "What are encoders and decoders used for?",
        "two-uses",
        "encoders embed, decoders generate",
        "training a generator without the causal mask",
    ),
    CourseQuestion(
        "How does a transformer differ from an RNN and an MLP?",
        "versus-rnn-mlp",
        "parameters do not grow with length; positions that are known are computed in parallel",
        '"an RNN has one weight matrix": a simple one has two, an LSTM two for each of three gates and the candidate; '
        "and a learned position table does grow",
    ),
    CourseQuestion(
        "What do transformers and RNNs have in common?",
        "similar-to-rnn",
        "weights shared over positions and a recurrence: linear attention has a state of constant size, softmax "
        "attention its KV cache",
        '"a transformer has no state": when it generates, the KV cache is its state',
    ),
    CourseQuestion(
        "What do transformers and MLPs have in common?",
        "similar-to-mlp",
        "a feed-forward network is attention to fixed keys and values; for one token self-attention is a linear layer",
        '"attention is a linear layer": its weights depend on the input',
    ),
    CourseQuestion(
        "Do weights after dropout sum to 1?", "dropout-weights", "on average only", "looking at weights after dropout"
    ),
    CourseQuestion(
        "Is a patch embedding a convolution?",
        "patches-are-convolution",
        "yes, with stride p",
        "another flattening order than the weights'",
    ),
    CourseQuestion(
        "How far does a layer of a ViT and of a CNN see?",
        "receptive-field",
        "ViT: everywhere; CNN: its kernel, and k − 1 pixels more with each layer (3, 5, 7 for k = 3)",
        '"by one kernel a layer"; "a ViT has no locality": a token is local to its patch until attention mixes tokens',
    ),
    CourseQuestion(
        "Do learned positions recover the grid of patches?",
        "position-maps",
        "near patches get similar vectors, more than untrained ones",
        "taking it for evidence about attention: with uniform attention the correlation is as high",
    ),
    CourseQuestion(
        "What is the class token for?",
        "class-token",
        "reading the patches by attention; the mean of the patches does as well",
        '"it is the image": it is the same vector for every image, only attention brings the image in',
    ),
    CourseQuestion(
        "Do ViTs need more data?",
        "data-regimes",
        'a CNN is ahead with little; "much" is not available here',
        "concluding from a small run",
    ),
    CourseQuestion(
        "Do ViTs need more data on real images, too?",
        "data-regimes-real",
        "on handwritten digits the CNN's lead shrinks as images are added; --data runs it on CIFAR, where it does "
        "not yet",
        "comparing after a fixed number of steps: both must have converged",
    ),
    CourseQuestion(
        "Why does pretraining help to answer?",
        "pretraining",
        "the facts were read: without the asked people's lines it falls to chance among the places",
        '"it learned the language"',
    ),
    CourseQuestion(
        "Does confidence tell which answers are invented?",
        "made-up",
        "not reliably: a right answer is more confident than an invented one in about three of four pairs; a "
        "threshold trades coverage for precision",
        'an answer for every name: a look-up can say "unknown"',
    ),
    CourseQuestion(
        "What does attention give for three tokens, by hand?",
        "worked-example",
        "(−1.9932, −2.9976) … and with 1/√d (−1.9545, −2.9815) …",
        'rounding the attention map first: 1.17 and 0.21 for 1.1786 and 0.1989; "a token attends mainly to itself"',
    ),
    CourseQuestion(
        "Is `Q @ K.T` right for a batch?",
        "batch-transpose",
        "no: `.transpose(1, 2)`; `.T` reverses all axes: a shape error or a wrong shape, and at batch = length = dim "
        "it mixes the batch in",
        "testing with batch = length = dim: there `.T` runs and mixes the batch in",
    ),
)


TITLES = {entry.claim: entry.question for entry in QUESTIONS}  # the question that titles each claim


def search_questions(words: str = "") -> list[CourseQuestion]:
    """The questions in which every word occurs, in any field; all of them without a word.

    >>> [found.claim for found in search_questions("average pooling")]
    ['diffuse']
    """
    return [
        entry
        for entry in QUESTIONS
        if has_words(f"{entry.question} {entry.claim} {entry.answer} {entry.mistake}", words)
    ]


def as_markdown() -> str:
    """The page docs/questions.md."""
    lines = [
        "# Questions that courses ask, answered by experiments",
        "",
        "Each row has the question, the command that answers it, the answer, and the usual mistake.",
        "`qkv claims run NAME` prints the numbers; `--set` changes conditions; `--report page.html` draws a figure.",
        "`qkv questions WORDS` searches this table. β is the inverse temperature, `scale` in the code.",
    ]
    family, claims = None, read_catalog()
    for entry in QUESTIONS:
        if claims[entry.claim].family != family:
            family = claims[entry.claim].family
            lines += [
                "",
                f"## {family.capitalize()}",
                "",
                "| question | command | answer | usual mistake |",
                "|---|---|---|---|",
            ]
        lines.append(f"| {entry.question} | `{entry.command}` | {entry.answer} | {entry.mistake} |")
    return "\n".join(lines) + "\n"
