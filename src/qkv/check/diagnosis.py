"""What a mistake is: its family, by which tools count, and words for the person who made it."""

from dataclasses import dataclass

# The families of known mistakes, and the usual fix of each.
FAMILIES = {
    "no mask": "add the causal mask to this path, before the softmax",
    "mask off by one": "a query may see keys up to and including itself: tril, neither tril(-1) nor tril(1)",
    "mask transposed": "allow key ≤ query: tril, not triu",
    "mask not −∞": "fill masked scores with −∞, so that nothing comes through",
    "mask after softmax": "put −∞ into the scores before the softmax",
    "mask polarity": "invert the mask, or swap the branches of where or masked_fill",
    "mask with cache": "with a cache the mask stands at the end: allow key ≤ query + (keys − queries)",
    "alignment": "with more keys than queries the mask stands at the end: allow key ≤ query + (keys − queries)",
    "mask dropped": "hand the mask on, also when queries and keys are of different lengths",
    "leak": "find what reads the whole sequence: a mean, a norm, blocks, a mask that is built or sliced wrongly",
    "window": "a window of W sees keys from query − W + 1 to query: mind the inequality",
    "softmax axis": "take the softmax over the keys, the last axis of q·kᵀ",
    "softmax replaced": "use a softmax over the keys",
    "scale": "multiply q·k by 1/√(head width), once, before the softmax",
    "scores changed": "scores are q·k times the scale, nothing else",
    "low precision": "compute scores, angles and softmax in float32 at least",
    "overflow": "subtract the row's maximum before exp, or use torch.softmax",
    "fully masked row": "a softmax over −∞ alone is NaN: give such rows weights of 0",
    "heads mixed": "split with view(b, t, h, d).transpose(1, 2) and merge with transpose(1, 2).reshape(b, t, h·d)",
    "head layout": "share keys and values alike: repeat_interleave (0 0 1 1), not repeat (0 1 0 1)",
    "inputs swapped": "scores are q·k, the output is weights · v",
    "rotary": "turn queries and keys alike, by place × frequency, all widths, and nothing else",
    "positions": "let positions depend on where a token stands, not on the length",
    "alibi": "the slopes of h heads are 2^(−8/h), 2^(−16/h), …, 2^(−8)",
    "sink": "the sink's score takes part in every softmax",
    "cache order": "append new keys and values behind those kept, and keep all of them",
    "positions with cache": "count positions on from the length of the cache",
    "padding": "mask the padded keys of each row, before the softmax, with the right polarity",
    "batch mixed": "nothing may run over the batch axis: look at norms, means and views",
    "random in eval": "drop only if self.training (functional dropout is on unless told otherwise)",
    "input changed": "do not write into the caller's tensor: no trailing underscore, no assignment to a slice",
    "detached": "take out the detach, no_grad, item or numpy on the way",
    "unreached": "use the parameter, or take it out",
    "paths differ": "both paths must compute the same: mask, scale, dropout and positions alike",
    "untied": "tie the weights again after loading",
    "loss shift": "shift once: logits[:, :-1] against tokens[:, 1:]",
    "loss mask": "shift the mask as the labels are shifted, and leave padding out",
    "loss mean": "divide by the number of tokens that are scored",
    "accumulation": "divide each micro-batch's loss once, by what the whole batch holds; step on what is left over",
    "packing": "mask between documents, and start positions anew in each",
    "split": "split before shuffling into windows, so that no example stands on both sides",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """family: one of FAMILIES. words: what is wrong, and the usual fix. where: the layer, if it is one of several."""

    family: str
    words: str
    where: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"no family of mistakes is called {self.family!r}")

    @property
    def hint(self) -> str:
        """The words, with the layer, the family and the usual fix."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.words} [{self.family}]: {FAMILIES[self.family]}"
