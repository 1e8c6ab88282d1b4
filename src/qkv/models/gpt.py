"""GPT: decoder-only language model, with RoPE, grouped-query attention, sliding window and KV cache.

Axes: b batch · t tokens · c model dim.
"""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from qkv.models.base import Model, init_weights
from qkv.models.compiled_decoding import CompiledDecoder, can_decode_compiled, can_read_prompt
from qkv.models.fast_decoding import MIN_TOKENS, FastDecoder, can_decode_fast
from qkv.models.generation import LanguageModel
from qkv.nn import DenseSynthesizer, Dot, KVCache, LocationAware, RandomSynthesizer, Score
from qkv.nn.argument_names import explain_names
from qkv.nn.block import Block, BlockConfig, NormOrder
from qkv.nn.embeddings import Position, PositionEmbedding, TokenEmbedding, get_position
from qkv.nn.feed_forward import Activation
from qkv.nn.kv_cache import restore_on_error
from qkv.nn.multi_head_attention import AttentionBias
from qkv.nn.norms import NormKind
from qkv.nn.prepare_masks import prepare_causal

NANOGPT_NAMES = {
    "n_layer": "layers=",
    "n_head": "heads=",
    "n_embd": "dim=",
    "block_size": "max_length=",
    "num_layers": "layers=",
    "num_heads": "heads=",
    "embed_dim": "dim=",
}


@explain_names(NANOGPT_NAMES)
@dataclass(frozen=True)
class GPTConfig:
    """The sizes and choices of a GPT.

    Args:
        max_length: longest sequence with learned positions; other positions set no limit.
        kv_heads: number of key heads, default `heads`; fewer is grouped-query attention.
        mlp_dim: hidden dim of the feed-forward network, default 4·dim.
        position: learned, sinusoidal, none, rope, alibi, t5, shaw, or a scheme such as Rope(base=500_000).
        score: attention score; DenseSynthesizer(max_length) is the synthesizer variant.
        sliding_window: number of tokens a query sees, including itself; None is all before it.
        attention_bias: biases of the attention projections, default `bias`; "qkv": all but the output projection.
        tie_embeddings: whether the output projection shares the token embedding.
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
    norm_order: NormOrder = "pre"
    norm_eps: float = 1e-5
    position: Position = "learned"
    score: Score = Dot()  # noqa: RUF009  (frozen: safe to share)
    sliding_window: int | None = None
    dropout: float = 0.0
    bias: bool = True
    attention_bias: AttentionBias | None = None
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", get_position(self.position, causal=True))
        if self.layers < 0:
            raise ValueError(f"layers must be 0 or more, got {self.layers}")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window must be at least 1, got {self.sliding_window}")

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.from_model_config(self)


class GPT(LanguageModel, Model):
    """Decoder-only transformer: tokens in, logits of each next token out.

    >>> import torch
    >>> model = GPT(GPTConfig(vocab_size=65, dim=32, layers=2, heads=4))
    >>> model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 65])
    """

    config_class = GPTConfig

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.tokens = TokenEmbedding(config.vocab_size, config.dim)
        self.position_embedding = PositionEmbedding(
            config.position, config.max_length, config.dim, dropout=config.dropout
        )
        self.blocks = nn.ModuleList(Block(config.block) for _ in range(config.layers))
        self.norm = config.block.make_final_norm()
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        init_weights(self, layers=config.layers)
        if config.tie_embeddings:
            self.head.weight = self.tokens.weight

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        token_mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Float[Tensor, "b t vocab"]:
        """Logits of each next token.

        Args:
            token_mask: (b, t), True for real tokens.
            cache: KV cache of earlier calls (`new_cache`); the tokens of this call are appended.
            documents: (b, t), the document of each token where a row packs several texts; each is read independently.
        """
        return self.head(self.hidden_states(tokens, token_mask, cache, documents))

    def hidden_states(
        self,
        tokens: Int[Tensor, "b t"],
        token_mask: Tensor | None = None,
        cache: KVCache | None = None,
        documents: Tensor | None = None,
    ) -> Float[Tensor, "b t c"]:
        """The input of the output projection; arguments as in `forward`."""
        x = self.tokens(tokens)
        if documents is not None and isinstance(self.config.score, LocationAware):
            raise ValueError("location-aware scores cannot pack documents: they use the previous query's weights")
        with restore_on_error(cache):
            positions, mask = prepare_causal(x, token_mask, cache, self.config.sliding_window, documents)
            x = self.position_embedding(x, positions)
            for index, block in enumerate(self.blocks):
                layer_cache = None if cache is None else cache.layer(index)
                x = block(x, mask=mask, positions=positions, cache=layer_cache)
            if cache is not None:
                cache.trim()
        return self.norm(x)

    def new_cache(self) -> KVCache:
        return KVCache(self.config.sliding_window)

    def prompt_decoder(self, tokens: Int[Tensor, "b t"], max_new_tokens: int) -> CompiledDecoder | None:
        """A decoder that reads the prompt itself, where that is faster."""
        if max_new_tokens <= MIN_TOKENS or not can_read_prompt(self, tokens) or not can_decode_fast(self):
            return None
        if not can_decode_compiled(self, len(tokens)):
            return None
        self.tokens.check(tokens)
        return CompiledDecoder(self, len(tokens), tokens.shape[1] + max_new_tokens - 1)

    def fast_decoder(self, cache: KVCache, max_tokens: int) -> CompiledDecoder | FastDecoder | None:
        if max_tokens < MIN_TOKENS or not can_decode_fast(self):
            return None
        rows = cache.layer(0).get()[1].shape[0] if len(self.blocks) else 1
        if can_decode_compiled(self, rows):
            return CompiledDecoder(self, rows, max_tokens, cache)
        return FastDecoder(self, cache, max_tokens)

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the model has positions for; None is without limit."""
        limits = [self.config.max_length] if self.config.position == "learned" else []
        if isinstance(self.config.score, DenseSynthesizer | RandomSynthesizer):
            limits.append(self.config.score.max_length)
        return min(limits, default=None)
