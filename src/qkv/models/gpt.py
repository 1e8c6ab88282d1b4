"""GPT: a decoder-only language model; each token sees itself and those before it.

Axes: b batch · t tokens · c model width.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, small_normal
from qkv.models.decode import WORTHWHILE, Decoder, decodable
from qkv.models.generate import LanguageModel
from qkv.nn import DenseSynthesizer, Dot, KVCache, LocationAware, RandomSynthesizer, Score
from qkv.nn.block import Block, BlockConfig, Order
from qkv.nn.context import causal_context
from qkv.nn.embeddings import TokenEmbedding
from qkv.nn.feed_forward import Activation
from qkv.nn.kv_cache import undone_on_failure
from qkv.nn.multi_head_attention import AttentionBias
from qkv.nn.norms import NormKind
from qkv.nn.placement import Placement, Position, named_position


@dataclass(frozen=True)
class GPTConfig:
    """A GPT's sizes and choices.

    length: the longest sequence that learned positions know; other positions set no limit.
    hidden: width of the feed-forward network; 4·width if not given.
    position: learned, sinusoidal, none, rope, alibi, t5, shaw, or a scheme such as Rope(base=500_000).
    score: how queries meet keys; DenseSynthesizer(length) is the synthesizer variant.
    window: how many tokens a query sees, itself included; None is all before it.
    attention_bias: whether attention's projections add a vector, if not as the others do; "qkv": its last does not.
    tied: whether the output shares the token vectors.
    """

    vocab_size: int
    max_length: int = 128
    dim: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int | None = None
    head_dim: int | None = None
    mlp_dim: int | None = None
    activation: Activation = "gelu"
    norm: NormKind = "layer"
    norm_order: Order = "pre"
    norm_eps: float = 1e-5
    position: Position = "learned"
    score: Score = Dot()  # noqa: RUF009  (frozen: safe to share)
    sliding_window: int | None = None
    dropout: float = 0.0
    bias: bool = True
    attention_bias: AttentionBias | None = None
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", named_position(self.position, causal=True))
        if self.layers < 0 or (self.sliding_window is not None and self.sliding_window < 1):
            raise ValueError(f"layers are 0 or more, a window 1 or more; got {self.layers} and {self.sliding_window}")

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self)


class GPT(LanguageModel, Model):
    """Tokens in, logits of each next token out.

    >>> import torch
    >>> model = GPT(GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 65])
    """

    config_class = GPTConfig

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.place = Placement(config.position, config.max_length, config.dim, dropout=config.dropout)
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        self.norm = config.block.make_last_norm()
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        small_normal(self, layers=config.layers)
        if config.tie_embeddings:
            self.head.weight = self.tokens.weight

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        token_mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """present (b, t): which tokens exist. cache: what earlier calls left; this call's tokens are added.

        documents (b, t): a number for each of several texts packed into a row; each is read as if it were alone.
        """
        return self.head(self.hidden_states(tokens, token_mask, cache, documents))

    def hidden_states(
        self,
        tokens: Int[Tensor, "b t"],
        token_mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Float[Tensor, "b t c"]:
        """What the output projection reads."""
        x = self.tokens(tokens)
        if documents is not None and isinstance(self.config.score, LocationAware):
            raise ValueError("location-aware scores look back at the last query, which may be another document's")
        with undone_on_failure(cache):
            positions, mask = causal_context(x, token_mask, cache, self.config.sliding_window, documents)
            x = self.place(x, positions)
            for index, block in enumerate(self.blocks):
                held = None if cache is None else cache.layer(index)
                x = block(x, mask=mask, positions=positions, cache=held)
            if cache is not None:
                cache.trim()
        return self.norm(x)

    def new_cache(self) -> KVCache:
        return KVCache(self.config.sliding_window)

    def decoder(self, cache: KVCache, room: int) -> Decoder | None:
        return Decoder(self, cache, room) if room >= WORTHWHILE and decodable(self) else None

    @property
    def limit(self) -> int | None:
        """The longest sequence that the model knows positions for; None if there is no such limit."""
        lengths = [self.config.max_length] if self.config.position == "learned" else []
        if isinstance(self.config.score, DenseSynthesizer | RandomSynthesizer):
            lengths.append(self.config.score.max_length)
        return min(lengths, default=None)
