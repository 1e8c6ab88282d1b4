"""What people call things: parameters of attention code by the names seen in the wild."""

QUERIES = ("q", "query", "queries", "xq")
TOKENS = ("input_ids", "tokens", "token_ids", "idx", "ids", "input_tokens")
MASKS = ("allowed", "mask", "attn_mask", "attention_mask", "src_mask", "causal_mask", "bias_mask", "attn_bias")
CAUSAL = ("causal", "is_causal")
# name: whether True (or 1) means that the token exists
PADDING = {
    "present": True,
    "attention_mask": True,
    "padding_mask": False,
    "key_padding_mask": False,
    "src_key_padding_mask": False,
    "pad_mask": False,
}
CACHES = ("cache", "past_key_values", "past_key_value", "kv_cache", "layer_past", "past", "state")

# what a constructor's parameter is probably for, and a small value for it
SIZES: dict[int, tuple[str, ...]] = {
    32: ("width", "dim", "d_model", "embed_dim", "n_embd", "hidden_size", "emb_dim", "model_dim", "embedding_dim", "c"),
    4: ("heads", "num_heads", "n_head", "n_heads", "nhead", "num_attention_heads", "h"),
    2: ("layers", "num_layers", "n_layer", "n_layers", "num_hidden_layers", "depth", "num_blocks"),
    64: (
        "vocab", "vocab_size", "n_vocab", "num_tokens", "hidden", "hidden_dim", "ff_dim", "d_ff", "dim_feedforward",
        "intermediate_size", "mlp_dim", "length", "block_size", "max_len", "max_length", "max_seq_len", "seq_len",
        "context_length", "n_positions", "max_position_embeddings", "context_size", "n_ctx",
    ),
    8: ("head_dim", "d_head", "head_width", "d_k", "dim_head", "head_size"),
}  # fmt: skip
GUESSES = {name: size for size, names in SIZES.items() for name in names}
ZEROES = ("dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "attn_dropout", "resid_dropout", "p", "drop")
