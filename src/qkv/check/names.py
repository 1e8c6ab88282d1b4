"""What people call things: parameters of attention code by the names seen in the wild."""

QUERIES = ("q", "query", "queries", "xq")
TOKENS = ("input_ids", "tokens", "token_ids", "idx", "ids", "input_tokens", "inp", "input", "inputs", "src")
IMAGES = ("pixel_values", "images", "image", "img", "imgs", "pictures", "pixels")
SOURCES = (
    "source", "src", "input_ids", "src_tokens", "source_ids", "src_ids", "encoder_input", "enc_input", "encoder_inputs",
    "enc_inputs", "enc", "inputs", "input", "x", "src_seq", "source_tokens",
)  # fmt: skip
TARGETS = (
    "target", "tgt", "trg", "decoder_input_ids", "tgt_tokens", "target_ids", "tgt_ids", "decoder_input", "dec_input",
    "decoder_inputs", "dec_inputs", "dec", "outputs", "y", "prev_output_tokens", "trg_seq", "tgt_seq", "target_tokens",
)  # fmt: skip
MEMORIES = (
    "memory",
    "context",
    "encoder_hidden_states",
    "encoder_output",
    "enc_output",
    "enc_out",
    "encoder_out",
    "mem",
)
MASKS = (
    "allowed", "mask", "attn_mask", "attention_mask", "src_mask", "tgt_mask", "trg_mask", "causal_mask", "bias_mask",
    "attn_bias", "look_ahead_mask", "self_attn_mask", "self_mask", "target_mask", "slf_attn_mask",
)  # fmt: skip
CAUSAL = ("causal", "is_causal", "use_causal_mask")
# name: whether True (or 1) means that the token exists
PADDING = {
    "present": True,
    "attention_mask": True,
    "padding_mask": False,
    "key_padding_mask": False,
    "src_key_padding_mask": False,
    "tgt_key_padding_mask": False,
    "pad_mask": False,
    "target_present": True,
    "decoder_attention_mask": True,
    "input_mask": True,
    "token_mask": True,
    "valid": True,
    "valid_mask": True,
}
# of an encoder's input, or of what a decoder attends to
SOURCE_PADDING = {
    "source_present": True,
    "attention_mask": True,
    "encoder_attention_mask": True,
    "src_key_padding_mask": False,
    "memory_key_padding_mask": False,
    "memory_present": True,
}
SOURCE_MASKS = ("src_mask", "source_mask", "memory_mask", "enc_mask", "encoder_mask", "src_padding_mask", "cross_mask",
                "cross_attn_mask", "dec_enc_attn_mask", "padding_mask", "pad_mask")  # fmt: skip
CACHES = (
    "cache", "past_key_values", "past_key_value", "kv_cache", "layer_past", "past", "state", "cache_params", "past_kv",
    "kv", "caches", "kv_caches", "layer_cache", "past_kvs", "memory_cache", "cached_kv",
)  # fmt: skip
# parameters that say where a piece begins; a module with one of them keeps its cache itself
OFFSETS = (
    "input_pos",
    "start_pos",
    "position",
    "offset",
    "start",
    "pos",
    "cache_position",
    "seq_offset",
    "past_length",
)
# flags that ask for a cache
ASKING = (
    "use_cache",
    "return_cache",
    "use_kv_cache",
    "return_kv",
    "layer_cache_on",
    "return_present",
    "return_kv_cache",
)
# methods that empty or make a cache that a module keeps itself
RESETS = ("reset_cache", "reset_kv_cache", "clear_cache", "clear_kv_cache", "empty_cache")

# what a constructor's parameter is probably for, and a small value for it
SIZES: dict[int, tuple[str, ...]] = {
    32: (
        "width", "dim", "d_model", "embed_dim", "n_embd", "hidden_size", "emb_dim", "model_dim", "embedding_dim", "c",
        "d_in", "d_out", "dmodel", "embed_size", "hidden_units", "embedding_size", "emb_size", "d_embed", "d_hidden",
        "dim_model", "in_dim", "out_dim", "d_embedding", "num_hiddens", "query_size", "key_size", "value_size",
        "image_size",
        "img_size", "image", "input_dim", "features", "n_state", "n_feat", "num_features", "attention_dim",
        "feature_dim",
        "input_size", "output_dim", "n_features", "channels_in", "d", "dim_in", "dim_out", "in_features",
        "out_features",
    ),
    4: ("heads", "num_heads", "n_head", "n_heads", "nhead", "num_attention_heads", "h", "n_attn_heads", "head_count",
        "attention_heads", "number_of_heads", "num_q_heads", "n_q_heads", "H", "n_query_heads"),
    2: ("layers", "num_layers", "n_layer", "n_layers", "num_hidden_layers", "depth", "num_blocks", "N", "n_blocks",
        "kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head", "num_encoder_layers",
        "num_decoder_layers", "n_kv_groups", "num_kv_groups", "kv_groups", "number_of_layers", "encoder_layers",
        "decoder_layers", "blocks"),
    64: (
        "vocab", "vocab_size", "n_vocab", "num_tokens", "hidden", "hidden_dim", "ff_dim", "d_ff", "dim_feedforward",
        "intermediate_size", "mlp_dim", "length", "block_size", "max_len", "max_length", "max_seq_len", "seq_len",
        "context_length", "n_positions", "max_position_embeddings", "context_size", "n_ctx", "src_vocab", "tgt_vocab",
        "src_vocab_size", "tgt_vocab_size", "trg_vocab_size", "source_vocab", "target_vocab", "ntoken", "ntokens",
        "max_sequence_length", "max_seq_length", "context", "max_context", "ffn_dim", "ffn_hidden", "d_mlp", "mlp_size",
        "max_tokens", "max_positions", "seq_length", "T", "sequence_length", "inner_dim", "feedforward_dim", "ffn_size",
        "ff_size", "hidden_features", "window_length", "num_embeddings", "dim_ff", "d_ffn", "n_tokens", "max_t",
        "input_vocab_size", "target_vocab_size", "max_target_len", "max_source_len",
    ),
    8: ("head_dim", "d_head", "head_width", "d_k", "dim_head", "head_size", "d_v", "d_q", "dim_k", "dim_v", "dk", "dv",
        "patch_size", "patch", "d_key", "d_value", "key_dim", "value_dim", "dim_key", "dim_value", "dim_q"),
    3: ("channels", "in_channels", "in_chans", "num_channels", "n_channels"),
    10: ("classes", "num_classes", "n_classes", "num_labels"),
}  # fmt: skip
GUESSES = {name: size for size, names in SIZES.items() for name in names}
ZEROES = (
    "dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "attn_dropout", "resid_dropout", "p", "drop", "dropout_p",
    "drop_rate", "dropout_rate", "p_drop", "attention_dropout", "proj_drop", "attn_drop", "drop_prob", "dropout_prob",
    "emb_dropout", "pdrop", "p_dropout", "rate", "ff_dropout",
)  # fmt: skip
