"""Padding and packing: padding must not matter, wherever it is, and packed documents must not see each other.

Axes: b batch · t queries · s keys.
"""

import inspect
from functools import partial

import torch
from torch import Tensor

from qkv.check.checks.generate import generates_left_padded
from qkv.check.checks.state import forward_as
from qkv.check.contract import Contract
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Diagnosis, Finding, Verdict
from qkv.check.shapes import Sweep
from qkv.check.tracing.readings import record_run

DOCUMENT_IDS = ("document_ids", "doc_ids", "segment_ids", "sequence_ids", "documents", "seq_ids", "document")


def check_padding(impl: Implementation, contract: Contract, sweep: Sweep) -> list[Finding]:
    """The content of padding does not matter, removing it changes nothing, and a fully padded row stays finite."""
    if not impl.takes_padding:
        elsewhere = impl.source is not None and impl.source.takes_padding
        verdict: Verdict = "inconclusive" if contract.padding and not elsewhere else "n/a"
        return [Finding("padding", verdict, None, "it takes no padding mask that could be recognized")]
    findings = []
    for side, token_mask in padding_masks(impl.length).items():
        if side not in impl.padding_sides:
            continue
        content = _check_content(impl, contract, side, token_mask)
        findings += [content, _check_removed(impl, contract, side, token_mask, content)]
    findings += [_check_rows(impl, contract, sweep), _check_nothing_padded(impl, contract, sweep)]
    return [*findings, _check_fully_padded_row(impl)]


def _check_rows(impl: Implementation, contract: Contract, sweep: Sweep) -> Finding:
    """In longer batches whose rows have unequal padding, no row's padding matters; each row is judged by itself."""
    worst, at = 0.0, ""
    for length in sweep.only(17, 65):
        generator = torch.Generator().manual_seed(54)
        masks = [mask for side, mask in _row_masks(length) if side in impl.padding_sides]
        token_mask = torch.stack([*masks, torch.ones(length, dtype=torch.bool)])
        x = impl.random_input(len(token_mask), length, generator)
        keep = token_mask if x.ndim == 2 else token_mask[..., None]
        padded = torch.where(keep, x, impl.random_input(len(token_mask), length, generator).to(x))
        real = torch.where(~keep, x, impl.random_input(len(token_mask), length, generator).to(x))
        before, without, changed = (impl.run(y, token_mask) for y in (x, padded, real))
        for row, mask in enumerate(token_mask):
            own = [impl.select_tokens(out[row : row + 1], mask) for out in (before, without, changed)]
            effect, allowed = (float((out - own[0]).abs().max()) for out in own[1:])
            if not bool(own[0].isfinite().all()):
                if not bool(mask[0]):  # the rows before a left-padded token see nothing: judged elsewhere
                    continue
                effect, allowed = float("inf"), 1.0
            if allowed > 0 and not effect / allowed <= worst:
                worst, at = effect / allowed, f"row {row} of {len(token_mask)} at {length} tokens"
    evidence = f"in batches with unequal padding, other padding has effect {worst:.2g} relative to an allowed change"
    if worst <= impl.tolerance:
        return Finding("padding in rows", "pass", worst, evidence)
    hint = "the padding of one row reaches others, or masks of longer sequences are built differently"
    verdict: Verdict = "fail" if contract.padding is not False else "described"
    return Finding("padding in rows", verdict, worst, f"{evidence} ({at})", hint, "padding")


def _row_masks(n: int) -> list[tuple[str, Tensor]]:
    """Padding of unequal lengths, and where it is."""
    positions = torch.arange(n)
    return [
        ("right", positions < 2),
        ("right", positions < n - 1),
        ("left", positions >= n // 2),
        ("holes", (positions % 5 != 3) | (positions == 0)),
    ]


def _check_nothing_padded(impl: Implementation, contract: Contract, sweep: Sweep) -> Finding:
    """A mask that marks every token as real gives the outputs of no mask."""
    worst = 0.0
    for length in sweep.only(1, 13, 65):
        token_mask = torch.ones(2, length, dtype=torch.bool)
        worst = max(worst, relative_difference(sweep.outs[length], impl.run(sweep.x[:, :length], token_mask)))
    evidence = f"with a mask that marks all tokens as real, outputs differ by {worst:.2g} (relative) from those without"
    if worst <= 10 * impl.tolerance:
        return Finding("padding (none)", "pass", worst, evidence)
    hint = "with a mask it takes another path, which computes something else"
    verdict: Verdict = "fail" if contract.padding is not False else "described"
    return Finding("padding (none)", verdict, worst, evidence, hint, "paths differ")


def padding_masks(n: int) -> dict[str, Tensor]:
    """Padding on the right, on the left, and holes: True = a real token."""
    positions = torch.arange(n)
    return {
        "right": positions < n - 3,
        "left": positions >= 3,
        "holes": (positions != 2) & (positions != n - 4),
    }


def _check_content(impl: Implementation, contract: Contract, side: str, token_mask: Tensor) -> Finding:
    """The content of padding does not change the outputs of real tokens."""
    generator = torch.Generator().manual_seed(9)
    x = impl.random_input(2, impl.length, generator)
    both = torch.stack((token_mask, torch.ones_like(token_mask)))  # rows differ, so that mixing them shows
    keep = token_mask if x.ndim == 2 else token_mask[:, None]
    padded = torch.where(keep, x, impl.random_input(2, impl.length, generator).to(x))
    control = impl.change_token(x, int(token_mask.nonzero()[0]), generator)
    before, without, changed = (impl.select_tokens(impl.run(y, both)[:1], token_mask) for y in (x, padded, control))
    name = f"padding content ({side})"
    if not bool(before.isfinite().all()):
        hint = "a softmax over −∞ alone is NaN, and 0 · NaN is NaN in the next layer: give such rows weights of 0"
        return Finding(name, "fail", None, "outputs of real tokens are NaN or infinite", hint)
    effect, allowed = float((without - before).abs().max()), float((changed - before).abs().max())
    if not allowed > 0:
        return Finding(name, "inconclusive", None, "changing a real token changes no output either")
    score = effect / allowed
    evidence = f"other padding has an effect of {effect:.2g} on real tokens (an allowed change: {allowed:.2g})"
    if score <= impl.tolerance:
        return Finding(name, "pass", score, evidence)
    hint = "the padding mask does not reach the scores of every key: check its polarity, its axis and its broadcasting"
    return Finding(name, "fail" if contract.padding is not False else "described", score, evidence, hint, "padding")


def _check_removed(
    impl: Implementation, contract: Contract, side: str, token_mask: Tensor, content: Finding
) -> Finding:
    """Real tokens give the same outputs without any padding.

    content: what the content of the same padding does. Only if it does nothing do positions explain a difference.
    """
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(10))
    both = torch.stack((token_mask, torch.ones_like(token_mask)))
    padded = impl.select_tokens(impl.run(x, both)[:1], token_mask)
    score = relative_difference(impl.run(x[:1, token_mask]), padded)
    name, evidence = f"padding removed ({side})", f"without its padding, outputs differ by {score:.2g} (relative)"
    if score <= 10 * impl.tolerance:
        return Finding(name, "pass", score, evidence)
    if side == "left" and contract.relative:
        hint = (
            "absolute positions matter, so positions are not relative: a rotation of queries only, of values, "
            "or by different amounts for queries and keys"
        )
        return Finding(name, "fail", score, evidence, hint, "positions")
    if side == "left" and contract.padding is not False and generates_left_padded(impl.module):
        hint = "positions count padding: take them from the token mask, cumsum − 1"
        evidence = f"{evidence}, and its own generate pads prompts on the left"
        return Finding(name, "fail", score, evidence, hint, "positions", condition="with padding on the left")
    if side != "right":  # most libraries document it: positions count padding too
        hint = "positions count padding: pass position ids, or count real tokens only"
        if content.verdict == "fail":
            hint = f"the content of padding matters: see {content.check}"
        return Finding(name, "warn", score, evidence, hint, "padding")
    verdict = "fail" if contract.padding is not False else "described"
    return Finding(name, verdict, score, evidence, "padding on the right changes tokens before it", "padding")


def _check_fully_padded_row(impl: Implementation) -> Finding:
    """A row of the batch that is all padding gives finite outputs, and does not change the other rows."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(17))
    token_mask = torch.ones(2, impl.length, dtype=torch.bool)
    full = impl.run(x, token_mask)
    token_mask[1] = False
    out = impl.run(x, token_mask)
    if not bool(out.isfinite().all()):
        rows = [row for row in range(2) if not bool(out[row].isfinite().all())]
        where = "both rows" if len(rows) == 2 else f"row {rows[0]}"
        evidence = f"row 1 is all padding; the outputs of {where} are NaN or infinite"
        hint = "a softmax over −∞ alone is NaN: give such rows weights of 0"
        share = float((~out.isfinite()).float().mean())
        verdict: Verdict = "described" if impl.adds_padding and rows == [1] else "fail"
        return Finding("fully padded row", verdict, share, evidence, hint, "fully masked row")
    score = relative_difference(full[0], out[0])
    evidence = f"row 1 is all padding: outputs are finite, and those of row 0 change by {score:.2g} (relative)"
    if score <= 10 * impl.tolerance:
        return Finding("fully padded row", "pass", score, evidence)
    hint = "the padding of one row changes another row: each row needs a mask and a length of its own"
    return Finding("fully padded row", "fail", score, evidence, hint, "padding")


def find_padding_bug(impl: Implementation, side: str) -> Diagnosis | None:
    """What a padding mask does wrong, read off the weights of the first attention that it goes wrong in."""
    real, places = padding_masks(impl.length)[side], torch.arange(impl.length)
    less = {"right": places < impl.length - 1, "left": places > 0, "holes": places != 4}[side]
    x = impl.random_input(3, impl.length, torch.Generator().manual_seed(23))
    tokens = torch.stack((less, real, torch.ones_like(real)))
    padded, plain = record_run(impl, x, tokens).attentions, record_run(impl, x).attentions
    if [attention.name for attention in padded] != [attention.name for attention in plain]:
        return None
    for found, base in zip(padded, plain, strict=True):
        if found.weights.shape != base.weights.shape:
            continue
        more = found.weights.shape[-1] - len(real)
        words = ""
        if more == 0:
            words = _name_padding_bug(found.attended, base.attended, tokens)
        elif more > 0 and not impl.aligned:
            words = _name_shifted_padding(found.attended, base.attended, tokens)
        if words:
            return Diagnosis("padding", words, found.name)
    return None


def _name_shifted_padding(found: Tensor, base: Tensor, tokens: Tensor) -> str:
    """What is wrong with the mask of keys (b, h, q, s) that are the tokens and some more, such as latents.

    Whether those come first cannot be read off, only where the mask hides keys though padding has an effect.
    """
    seen, before = found.any(1), base.any(1)
    more = found.shape[-1] - tokens.shape[1]
    if torch.equal(seen, before):
        return "the padding mask never reaches the scores"
    for offset, side in ((more, "last"), (0, "first")):
        placed = tokens.new_ones(len(tokens), found.shape[-1])
        placed[:, offset : offset + tokens.shape[1]] = tokens
        if torch.equal(seen, before & placed[:, None]):
            by = f"{more} key{'s' if more > 1 else ''}"
            places = f"the {side} {tokens.shape[1]} of {found.shape[-1]} keys"
            return (
                f"the padding mask is shifted by {by}: it hides keys as if the tokens were {places}, so padded tokens "
                "stay visible"
            )
    return ""


def _name_padding_bug(found: Tensor, base: Tensor, tokens: Tensor) -> str:
    """What is wrong with the keys that an attention (b, h, t, s) sees with padding; "" if nothing is."""
    rows = tokens[:, None]
    judged = tokens if found.shape[2] == tokens.shape[1] else tokens.new_ones(len(tokens), found.shape[2])
    seen, before = found.any(1), base.any(1)
    if torch.equal(seen[judged], (before & rows)[judged]):  # rows of padding may attend to anything
        return ""
    count, places = rows.sum(-1, keepdim=True), torch.arange(tokens.shape[1])
    hypotheses = {
        "the padding mask never reaches the scores": torch.ones_like(rows),
        "the padding mask is inverted: real tokens are hidden": ~rows,
        "the padding mask of one row is used for another": rows.flip(0),
        "the padding mask of one row is used for the next": rows.roll(1, 0),
        "a key is hidden only if it is padding in every row": rows.any(0, keepdim=True),
        "a key is hidden in all rows if it is padding in one": rows.all(0, keepdim=True),
        "the padding mask of the first row is used for all rows": rows[:1],
        "padding is taken to be on the right: real tokens are counted from the start": places < count,
        "padding is taken to be on the left: real tokens are counted from the end": places >= places.numel() - count,
    }
    if found.shape[2] == tokens.shape[1]:
        wrong_axis = "the padding mask hides queries instead of keys: it is on the wrong axis"
        hypotheses[wrong_axis] = tokens[:, :, None]
        if _uses_other_rows(found, base, tokens):
            return (
                "the padding mask is repeated over heads and rows in another order than the scores: rows get each "
                "other's"
            )
    for where in (torch.ones_like(judged), judged):
        for words, expected in hypotheses.items():
            wanted = before & expected
            nothing = ~wanted.any(-1, keepdim=True)  # equal weights, which a large negative number leaves of such rows
            if torch.equal(seen[where], (wanted | nothing & before)[where]):
                return words
    return _describe_wrong_keys(seen[1][judged[1]], before[1][judged[1]], tokens[1])


def _uses_other_rows(found: Tensor, base: Tensor, tokens: Tensor) -> bool:
    """Whether head h of row b has the padding of row (b · heads + h) mod rows; its own key may stay visible.

    Args:
        found: (b, h, t, s), what is attended to with padding; base: without.
    """
    rows, heads = found.shape[:2]
    if found.shape != base.shape or heads == 1 or found.shape[-1] != tokens.shape[1]:
        return False
    order = torch.arange(rows * heads).view(rows, heads) % rows
    expected = base & tokens[order][:, :, None]
    own = torch.eye(tokens.shape[1], dtype=torch.bool)
    return torch.equal(found & ~own, expected & ~own)


def _describe_wrong_keys(found: Tensor, base: Tensor, real: Tensor) -> str:
    """Which keys the real queries of a padded row see or miss wrongly; found and base: (queries, keys)."""
    shown, hidden = (found & ~real).any(0), (base & real & ~found).any(0)
    words = []
    if bool(shown.any()):
        words.append(f"padding stays visible ({_places(shown)})")
    if bool(hidden.any()):
        words.append(f"real tokens are hidden ({_places(hidden)})")
    where = f"with padding at {', '.join(map(str, (~real).nonzero()[:, 0].tolist()))}"
    return f"the padding mask is wrong: {where}, {' and '.join(words)}"


def _places(keys: Tensor) -> str:
    places = keys.nonzero()[:, 0].tolist()
    return f"key{'' if len(places) == 1 else 's'} {', '.join(map(str, places))}"


def check_packing(impl: Implementation) -> list[Finding]:
    """Packed documents do not see each other, and positions restart in each; for modules that take document ids."""
    module = impl.module
    assert module is not None
    parameter = next((known for known in DOCUMENT_IDS if known in inspect.signature(module.forward).parameters), None)
    if parameter is None:
        return []
    generator = torch.Generator().manual_seed(36)
    n, cut = impl.length, 5
    x = impl.random_input(2, n, generator)
    documents = (torch.arange(n) >= cut).long().expand(2, -1)
    first, alone = impl.change_token(x, 1, generator), x[:, cut:]
    with forward_as(module, partial(module.forward, **{parameter: documents})):
        packed, other, control = (impl.run(y).detach() for y in (x, first, impl.change_token(x, cut, generator)))
    with forward_as(module, partial(module.forward, **{parameter: documents[:, cut:]})):
        by_itself = impl.run(alone).detach()
    effect, allowed = (float((after - packed)[:, cut:].abs().max()) for after in (other, control))
    evidence = (
        f"a token of the first document has an effect of {effect:.2g} on the second (an allowed change: {allowed:.2g})"
    )
    if not allowed > 0:
        return [Finding("packing", "inconclusive", None, evidence)]
    if effect / allowed > impl.tolerance:
        hint = "documents see each other: positions may restart, but the mask does not separate them"
        return [Finding("packing", "fail", effect / allowed, evidence, hint, "packing")]
    off = relative_difference(by_itself, packed[:, cut:])
    difference = f"packed, the second document differs by {off:.2g} (relative) from itself alone"
    if off > 10 * impl.tolerance:
        hint = "positions continue from one document into the next: restart them in each"
        return [Finding("packing", "fail", off, difference, hint, "packing")]
    return [Finding("packing", "pass", off, f"{evidence}; {difference}")]
