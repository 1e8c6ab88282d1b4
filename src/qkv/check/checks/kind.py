"""Who sees whom: the influence map against what was promised."""

import torch
from torch import Tensor

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.influence import Influence, name_kind

HINTS = {
    "sees one token ahead": (
        "the mask is off by one: a query may see keys up to and including itself, no further",
        "mask off by one",
    ),
    "strictly causal: a token does not see itself": (
        "the mask is off by one: a query may see itself too",
        "mask off by one",
    ),
    "anti-causal: sees the future, not the past": ("the mask is transposed: allow key ≤ query", "mask transposed"),
}


def check_kind(influence: Influence, contract: Contract) -> list[Finding]:
    """Judge the map if a kind was promised, describe it otherwise."""
    found = name_kind(influence)
    if influence.silent:
        return [Finding("kind", "inconclusive", None, "no change of any token moved any output")]
    if contract.kind is None or influence.moves.shape[0] != influence.moves.shape[1]:
        return [Finding("kind", "described", None, f"the influence map is that of: {found}")]
    if contract.kind == "causal":
        return [_future(influence, found), _past(influence, found)]
    promised = f"window of {contract.window}" if contract.kind == "window" else contract.kind
    if contract.kind in ("prefix", "chunked"):
        promised = {"prefix": "prefix", "chunked": "chunks"}[contract.kind]
    ok = found.startswith(promised)
    evidence = f"promised {promised}; measured {found}"
    hint, family = (None, None) if ok else _hint(found, contract)
    return [Finding("kind", "pass" if ok else "fail", None, evidence, hint, family)]


def _future(influence: Influence, found: str) -> Finding:
    """No output may move when a later token is changed."""
    n = influence.moves.shape[0]
    ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
    worst, i, j = _largest(influence.moves, ahead)
    control = float(influence.moves[i, : i + 1].max())
    if control < influence.tolerance and worst < influence.tolerance:
        return Finding("causal", "inconclusive", None, f"output {i} moves for no token at all")
    score = worst / max(control, 1e-12) if control > influence.tolerance else worst
    evidence = f"changing token {j} moved output {i} by {worst:.2g} (control {control:.2g})"
    if score <= influence.tolerance:
        return Finding("causal", "pass", score, evidence)
    hint, family = HINTS.get(found) or _leak_hint(influence)
    return Finding("causal", "fail", score, evidence, hint, family)


def _past(influence: Influence, found: str) -> Finding:
    """Every output should move when an earlier token, or its own, is changed."""
    n = influence.moves.shape[0]
    behind = torch.ones(n, n, dtype=torch.bool).tril()
    unseen = behind & ~influence.felt
    if not bool(unseen.any()):
        return Finding("past reachable", "pass", 0.0, "every output moves for every token up to its own")
    i, j = (int(axis[0]) for axis in unseen.nonzero(as_tuple=True))
    evidence = f"changing token {j} does not move output {i} ({int(unseen.sum())} such pairs)"
    verdict = "described" if found.startswith("window") else "fail"
    hint, family = HINTS.get(found) or ("a mask hides part of the past: a window, a wrong alignment, blocks", "window")
    return Finding("past reachable", verdict, float(unseen.float().mean()), evidence, hint, family)


def _leak_hint(influence: Influence) -> tuple[str, str]:
    """What kind of leak the map looks like."""
    n = influence.moves.shape[0]
    ahead = torch.ones(n, n, dtype=torch.bool).triu(1)
    behind = torch.ones(n, n, dtype=torch.bool).tril(-1)
    share = float(influence.moves[ahead].mean() / influence.moves[behind].mean().clamp(min=1e-12))
    if bool((influence.felt | ~ahead).all()):
        if share > 0.4:
            words = "every later token comes through as strongly as earlier ones: there is no causal mask on this path"
            return words, "no mask"
        return (
            "every later token comes through, weakly: masked scores that are not −∞, a mask applied after the softmax, "
            "or a mean over the sequence",
            "leak",
        )
    return "some later tokens come through: look at how the mask is built and sliced", "leak"


def _hint(found: str, contract: Contract) -> tuple[str | None, str | None]:
    if contract.kind == "window" and found.startswith("window of"):
        width = found.split()[-1]
        return f"the window is {width} wide, promised was {contract.window}: an inequality is off by one", "window"
    if contract.kind == "bidirectional":
        return "a mask hides part of the sequence", "window"
    return None, "window" if contract.kind == "window" else "leak"


def _largest(moves: Tensor, where: Tensor) -> tuple[float, int, int]:
    place = int(moves.masked_fill(~where, -1.0).argmax())
    i, j = divmod(place, moves.shape[1])
    return float(moves[i, j]), i, j
