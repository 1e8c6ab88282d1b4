"""Questions that courses ask, with the claim that answers each, the answer and the usual mistake.

The command `qkv questions` and the page docs/questions.md show this table.
"""

from dataclasses import dataclass

from qkv.claims.registry import CLAIMS


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
        "What shape is H = V softmax(KᵀQ), and is it what the code with rows computes?",
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
        "when β(k_j − k_i)·q is large for all others; the error falls as e^(−margin)",
        '"the other keys must oppose the query": they need only be less alike',
    ),
    CourseQuestion(
        "How does it average two?",
        "average",
        "q = β(k_a + k_b), orthonormal keys: e^β/(m−2+2e^β) each",
        "forgetting that the layer divides by √d: 0.376, not 0.4999, at β = 10",
    ),
    CourseQuestion("When is it average pooling?", "diffuse", "β = 0, or q = 0"),
    CourseQuestion(
        "Soft or hard, self or cross?",
        "hard-soft",
        "four kinds; hard is the limit of soft",
        "training hard attention by its gradient: queries and keys get none",
    ),
    CourseQuestion(
        "What if a key moves a little?",
        "perturb-key",
        "every output moves by β α_i (v_i − h)(q·ε)",
        '"zero-mean noise cancels": a drift of second order stays',
    ),
    CourseQuestion(
        "What if a query moves?",
        "perturb-query",
        "its own output only",
        "confusing the query with the token: in self-attention the token is key and value too",
    ),
    CourseQuestion("Does a longer key get more weight?", "scale-key", "only where q·k > 0", '"larger keys win"'),
    CourseQuestion("Keys vary a little: does one head average reliably?", "calm-head", "yes while αβ² ≪ 1"),
    CourseQuestion(
        "One key varies along itself: what happens?",
        "one-head-variance",
        "the output flips between v_a and v_b once β > 2",
        '"the mean is still right, so it is fine": the variance nears ¼',
    ),
    CourseQuestion(
        "How do two heads help?",
        "two-heads",
        "one asks for each key: a twentieth of the variance",
        "forgetting the 7.86 % of draws in which k_a points away",
    ),
    CourseQuestion(
        "Would q_1 = β(μ_a+μ_b), q_2 = β(μ_a−μ_b) do?", "two-heads-wrong", "no: ¾ v_a + ¼ v_b", "this answer itself"
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
        "v_a − v_b: weights are not negative and share a value map",
        '"more heads are only faster"',
    ),
    CourseQuestion(
        "What does a permutation of the tokens do?",
        "equivariance",
        "permutes the outputs; the attention map becomes P S Pᵀ",
        '"the attention map stays S"; or testing equivariance alone, which a softmax over the wrong axis passes',
    ),
    CourseQuestion("What can values alone do?", "values-only", "c_2 ≈ u_a; no added u_d or u_c makes it u_b"),
    CourseQuestion(
        "Which K, Q, V give u_b and u_b − u_c?",
        "kqv",
        "V = (u_b u_bᵀ − u_c u_cᵀ)/β², K = I, Q = u_d u_aᵀ + u_c u_dᵀ",
        "forgetting that ‖u‖² = β²",
    ),
    CourseQuestion(
        "Can self-attention be the identity?",
        "identity",
        "where the margin β(1 − c) is large, c the largest cosine of two tokens; orthonormal: e^β/(e^β+n−1)",
        '"only for n ≤ d": 32 vectors in 8 dimensions separate at a larger β',
    ),
    CourseQuestion(
        "Is attention a convolution?",
        "convolution",
        "K heads at K offsets, where the kernel fits",
        "the border: weights still sum to 1 there",
    ),
    CourseQuestion(
        "Relative or absolute positions?",
        "positions",
        "relative scores do not change by a shift; a fixed lag carries over with some relative schemes, not all",
        '"relative generalizes"; angles in float32',
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
        "What does it cost?",
        "cost",
        "n² time; n² memory plain, n fused",
        "a full mask makes fused memory n² again; parallel is not cheaper than an RNN for n > d",
    ),
    CourseQuestion(
        "What is the feed-forward network for?",
        "feed-forward",
        "non-linear functions of one token, the same at each position",
        '"a network of its own at each position"',
    ),
    CourseQuestion(
        "Why do gradients reach far?",
        "path-length",
        "as 1/n under uniform attention, level through a sharp head; in an RNN they fall exponentially",
        '"they stay level", or "they fall as 1/n": it depends on how sharply the head attends',
    ),
    CourseQuestion(
        "Why residuals and norms?",
        "residual-norm",
        "without residuals gradients at the input vanish and tokens become identical, without norm they explode",
        "norms alone solve depth",
    ),
    CourseQuestion(
        "Who sees whom in encoder and decoder?",
        "encoder-decoder",
        "encoder: all; decoder: past and source",
        "masking after the softmax: the future leaks through the sum",
    ),
    CourseQuestion(
        "What are the two used for?",
        "two-uses",
        "encoders embed, decoders generate",
        "training a generator without the causal mask",
    ),
    CourseQuestion(
        "Against RNN and MLP?",
        "versus-rnn-mlp",
        "parameters do not grow with length, steps run in parallel",
        "a learned position table does grow",
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
    CourseQuestion("How far does a layer see?", "receptive-field", "ViT: everywhere; CNN: its kernel"),
    CourseQuestion(
        "What do learned positions show?",
        "position-maps",
        "near patches get similar vectors, more than untrained ones",
        "taking it for evidence about attention: with uniform attention the correlation is as high",
    ),
    CourseQuestion("What is the class token for?", "class-token", "reading the patches; the mean does as well"),
    CourseQuestion(
        "Do ViTs need more data?",
        "data-regimes",
        'a CNN is ahead with little; "much" is not available here',
        "concluding from a small run",
    ),
    CourseQuestion(
        "Why does pretraining help to answer?",
        "pretraining",
        "the facts were read: without the asked people's lines it falls to chance among the places",
        '"it learned the language"',
    ),
    CourseQuestion(
        "Can confidence tell what is made up?",
        "made-up",
        "not reliably; a threshold trades coverage for precision",
        'an answer for every name: a look-up can say "unknown"',
    ),
    CourseQuestion(
        "Work three tokens by hand.",
        "worked-example",
        "(−1.9932, −2.9976) … and with 1/√d (−1.9545, −2.9815) …",
        'rounding the attention map first: 1.17 and 0.21 for 1.1786 and 0.1989; "a token attends mainly to itself"',
    ),
    CourseQuestion(
        "`Q @ K.T` for a batch?",
        "batch-transpose",
        "`.transpose(1, 2)`; `.T` mixes the batch in",
        "it runs when batch = length = dim",
    ),
)


def search_questions(words: str = "") -> list[CourseQuestion]:
    """The questions in which every word occurs, in any field; all of them without a word.

    >>> [found.claim for found in search_questions("average pooling")]
    ['diffuse']
    """
    wanted = words.lower().split()
    found = []
    for entry in QUESTIONS:
        text = f"{entry.question} {entry.claim} {entry.answer} {entry.mistake}".lower()
        if all(word in text for word in wanted):
            found.append(entry)
    return found


def as_markdown() -> str:
    """The page docs/questions.md."""
    lines = [
        "# Questions that courses ask, answered by experiments",
        "",
        "Each row has the question, the command that answers it, the answer, and the usual mistake.",
        "`qkv claims run NAME` prints the numbers; `--set` changes conditions; `--report page.html` draws a figure.",
        "`qkv questions WORDS` searches this table. β is the inverse temperature, `scale` in the code.",
    ]
    family = None
    for entry in QUESTIONS:
        if CLAIMS[entry.claim].family != family:
            family = CLAIMS[entry.claim].family
            lines += [
                "",
                f"## {family.capitalize()}",
                "",
                "| question | command | answer | usual mistake |",
                "|---|---|---|---|",
            ]
        lines.append(f"| {entry.question} | `{entry.command}` | {entry.answer} | {entry.mistake} |")
    return "\n".join(lines) + "\n"
