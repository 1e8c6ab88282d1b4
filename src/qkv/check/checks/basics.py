"""Basic checks that hold under every contract: deterministic in eval, batch independence, finite outputs, lengths.

Axes: b batch · h heads · t queries · s keys · d head dim.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from qkv.check.calling.functions import random_qkv
from qkv.check.calling.guard import seeded, watch_arguments
from qkv.check.contract import NO_PROMISES, Contract
from qkv.check.implementation import Implementation, relative_difference
from qkv.check.report import Finding, describe_error, judge
from qkv.check.shapes import Sweep, describe_lengths


def check_determinism(impl: Implementation, *, may_keep_state: bool = True) -> Finding:
    """The same input twice gives the same output. Where every call is a process of its own, no call leaves anything."""
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(4))
    score = relative_difference(impl.run(x), impl.run(x))
    evidence = f"two calls on the same input differ by {score:.2g} (relative)"
    if score > 1e-9 and may_keep_state and not _is_random(impl, x):
        evidence += ", also with the same random numbers"
        hint = "something that a call leaves behind changes the next one: keys, positions, a mask or a counter"
        return Finding(
            "deterministic in eval", "fail", score, evidence, hint, "state", condition="from the second call on"
        )
    hint = "dropout (or another random operation) is active in eval: pass dropout only if self.training"
    return judge("deterministic in eval", score, 1e-9, evidence, hint, "random in eval")


def _is_random(impl: Implementation, x: Tensor) -> bool:
    """Whether two calls with the same random numbers agree."""
    outs = []
    for _ in range(2):
        with seeded(8):
            outs.append(impl.run(x))
    return relative_difference(*outs) <= 1e-9


def check_inputs_not_mutated(impl: Implementation) -> Finding:
    """The input, and a padding mask with it, are the same after the call."""
    generator = torch.Generator().manual_seed(5)
    if impl.attention is None:
        calls: list[tuple[Tensor, ...]] = [(impl.random_input(2, impl.length, generator),)]
        if impl.takes_padding:
            token_mask = torch.arange(impl.length) < torch.tensor([[impl.length - 3], [impl.length]])
            calls.append((impl.random_input(2, impl.length, generator), token_mask))
    else:
        n = impl.nearest_length(6)
        calls = [random_qkv(n, generator, batch=2)]
        if impl.takes_mask:
            calls.append((*random_qkv(n, generator, batch=2), random_mask(1, n)[0]))
    change = 0.0
    with watch_arguments() as changed:
        for inputs in calls:
            before = [x.clone() for x in inputs]
            (impl.attention or impl.run)(*inputs)
            change = max(
                [change, *(float((x.double() - y.double()).abs().max()) for x, y in zip(inputs, before, strict=True))]
            )
        if impl.run_masked is not None:
            mask = random_mask(2, impl.length) if impl.masks_rows else random_mask(1, impl.length).expand(2, -1, -1)
            with suppress(Exception):  # it may take some masks only; another check says so
                impl.run_masked(impl.random_input(2, impl.length, generator), mask.clone())
    what, change = max([("input", change), *((f"argument {name}", by) for name, by in changed.items())], key=_by_size)
    if change == 0:
        return Finding("inputs not mutated", "pass", 0.0, "the input is bit-identical after the call")
    evidence = f"the call changed its {what.replace('argument argument', 'argument')} by up to {change:.2g}"
    hint = f"an operation with a trailing underscore, or an assignment to a slice, writes into the caller's {what}"
    return Finding("inputs not mutated", "fail", change, evidence, hint, "input changed")


def _by_size(pair: tuple[str, float]) -> float:
    return pair[1]


def random_mask(batch: int, length: int, seed: int = 83) -> Tensor:
    """A mask (b, t, t), other for each row, under which every query sees its own key and about half of the others."""
    mask = torch.rand(batch, length, length, generator=torch.Generator().manual_seed(seed)) < 0.5
    return mask | torch.eye(length, dtype=torch.bool)


def check_batch_independence(impl: Implementation, sweep: Sweep) -> list[Finding]:
    """A row's output does not depend on the other rows, on their number or on their order, at any length."""
    generator = torch.Generator().manual_seed(6)
    x, others = impl.random_input(3, impl.length, generator), impl.random_input(2, impl.length, generator)
    expected = impl.run(x)[:1]
    cases = {
        "alone": ("a row alone", lambda: impl.run(x[:1])),
        "with others": ("a row among other rows", lambda: impl.run(torch.cat((x[:1], others)))[:1]),
        "reordered": ("a row of a reordered batch", lambda: impl.run(x.flip(0))[-1:]),
    }
    findings = [_compare_rows(impl, case, words, expected, row) for case, (words, row) in cases.items()]
    findings.append(_check_batch_sizes(impl, sweep))
    failed = [finding for finding in findings if finding.verdict == "fail"]
    if impl.packed or not failed or not _depends_on_row_alone(impl, x, generator):
        return findings
    hint = (
        "rows of the same content have other outputs by their place in the batch: positions, or a table, are indexed "
        "along the batch axis (x.size(0) of (b, t, c)), not along the tokens"
    )
    named = [replace(finding, hint=hint, family="positions", condition="") for finding in failed]
    return [named.pop(0) if finding in failed else finding for finding in findings]


def _depends_on_row_alone(impl: Implementation, x: Tensor, generator: torch.Generator) -> bool:
    """Whether equal rows have unequal outputs, and the content of other rows has no effect."""
    limit = 1e-9 if impl.dtype == torch.float64 else 1e-4
    try:
        same = impl.run(x[:1].expand_as(x).contiguous())
        if relative_difference(same[:1].expand_as(same), same) <= limit:
            return False
        before = impl.run(x)
        for row in range(len(x)):
            others = impl.random_input(len(x), x.shape[1], generator).to(x)
            others[row] = x[row]
            if relative_difference(before[row], impl.run(others)[row]) > limit:
                return False
    except Exception:  # it takes few batch sizes
        return False
    return True


def _compare_rows(impl: Implementation, case: str, words: str, expected: Tensor, row: Callable[[], Tensor]) -> Finding:
    limit = 1e-9 if impl.dtype == torch.float64 else 1e-4
    hint = "something mixes rows: a norm, a mean or a view over the batch axis"
    if impl.packed:
        hint = "packed sequences see each other: the mask made of their boundaries does not separate all of them"
    try:
        score = relative_difference(expected, row())
    except Exception as error:
        evidence = f"{words} raises {describe_error(error)}"
        if is_refusal(error):
            return Finding(f"batch ({case})", "described", None, evidence)
        hint = "an axis of size 1 is lost (squeeze, view), or a batch size is written into the code"
        return Finding(f"batch ({case})", "fail", 1.0, evidence, hint, "batch mixed")
    evidence = f"the output of {words} differs by {score:.2g} (relative)"
    return judge(f"batch ({case})", score, limit, evidence, hint, "batch mixed")


def _check_batch_sizes(impl: Implementation, sweep: Sweep) -> Finding:
    """Batches of 1 and 5 give the rows of a batch of 2, at several lengths."""
    findings = []
    for length in sweep.only(1, 2, 17, 65):
        x, expected = sweep.x[:, :length], sweep.outs[length]
        more = impl.random_input(3, length, torch.Generator().manual_seed(45)).to(x)
        rows = {
            f"a row of {length} tokens alone": (expected[1:], lambda x=x: impl.run(x[1:])),
            f"rows of {length} tokens in a batch of 5": (
                expected,
                lambda x=x, more=more: impl.run(torch.cat((x, more)))[:2],
            ),
        }
        findings += [_compare_rows(impl, "sizes", words, *row) for words, row in rows.items()]
    worst = max(findings, key=lambda finding: (finding.verdict == "fail", finding.score or 0.0))
    if worst.verdict == "fail":
        return worst
    return _check_later_rows(impl, sweep) or worst


ROWS = 9  # one above the sizes of the blocks into which batches are cut


def _check_later_rows(impl: Implementation, sweep: Sweep) -> Finding | None:
    """The later rows of larger batches, which blocks of rows may get wrong; None if they are right."""
    length = sweep.only(13, impl.length)[0]
    x = impl.random_input(ROWS, length, torch.Generator().manual_seed(46)).to(sweep.x)
    limit = 1e-9 if impl.dtype == torch.float64 else 1e-4
    try:
        alone = torch.cat([impl.run(x[row : row + 2])[:1] for row in range(ROWS - 1)])
        outs = {count: impl.run(x[:count]) for count in range(3, ROWS)}
    except Exception:  # it takes few batch sizes
        return None
    for count, found in outs.items():
        wrong = [row for row in range(count) if relative_difference(alone[row], found[row]) > limit]
        if wrong:
            off = max(relative_difference(alone[row], found[row]) for row in wrong)
            rows = f"row {wrong[0]}" if len(wrong) == 1 else f"rows {', '.join(map(str, wrong))}"
            evidence = (
                f"in a batch of {count}, {rows} differ by {off:.2g} (relative) from the same rows in smaller ones"
            )
            hint = f"in a batch of {count}, {rows} use something of other rows: check how a batch is cut into blocks"
            condition = f"from {count} rows on"
            return Finding("batch (sizes)", "fail", off, evidence, hint, "batch mixed", condition=condition)
    return None


def check_strides(impl: Implementation, sweep: Sweep) -> Finding:
    """Inputs that are not contiguous give the same outputs."""
    worst, refused = 0.0, ""
    if impl.attention is not None:
        parts = random_qkv(impl.nearest_length(17), torch.Generator().manual_seed(55), batch=2)
        expected = impl.attention(*parts)
        other = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in parts]
        calls = [("a transposed input", lambda: impl.attention(*other))]  # pyright: ignore[reportOptionalCall]
    else:
        length = sweep.only(17)[0]
        expected = sweep.outs[length]
        calls = [(words, lambda y=y: impl.run(y)) for words, y in strided(sweep.x[:, :length]).items()]
    for words, call in calls:
        try:
            worst = max(worst, relative_difference(expected, call()[: len(expected)]))
        except Exception as error:
            refused = f"{words} raises {describe_error(error)}"
    if worst > 10 * impl.tolerance:
        evidence = f"inputs that are not contiguous give outputs that differ by {worst:.2g} (relative)"
        hint = "memory is read as if its strides were those of a contiguous tensor: as_strided, set_ or a raw pointer"
        return Finding("strides", "fail", worst, evidence, hint, "strides", condition="for inputs not contiguous")
    if refused:
        return Finding("strides", "warn", worst, refused, "use reshape instead of view, or contiguous() before it")
    return Finding("strides", "pass", worst, "inputs that are not contiguous give the same outputs")


def strided(x: Tensor) -> dict[str, Tensor]:
    """The same values with other strides."""
    views = {
        "a transposed input": x.transpose(0, 1).contiguous().transpose(0, 1),
        "a slice of a longer input": torch.cat((x, x), dim=1)[:, : x.shape[1]],
    }
    if x.ndim == 3:
        views["every second feature of an input"] = x.repeat_interleave(2, dim=-1)[..., ::2]
    return views


def is_refusal(error: Exception) -> bool:
    """Whether code refuses an input on purpose, by raise or assert, instead of failing in an operation."""
    return isinstance(error, ValueError | AssertionError | NotImplementedError)


def check_finite(impl: Implementation, sweep: Sweep, contract: Contract = NO_PROMISES) -> Finding:
    """Finite inputs, also large ones, give finite outputs at every length.

    Inputs × 1000 are judged where a softmax is promised, which bears any size. The exponentials of linear attention
    and of random features (Performer) underflow there by design.
    """
    x = impl.random_input(2, impl.length, torch.Generator().manual_seed(7))
    sizes = (1.0,) if impl.vocab_size is not None else (1.0, 30.0)
    if impl.vocab_size is None and contract.softmax is not None:
        sizes = (1.0, 30.0, 1000.0)
    for size in sizes:
        out = impl.run(x if size == 1.0 else x * size)
        if not bool(out.isfinite().all()):
            share = float((~out.isfinite()).float().mean())
            hint = "the softmax overflows: subtract the row's maximum first, or use torch.softmax"
            evidence = f"for inputs × {size:g}, {share:.0%} of the outputs are NaN or infinite"
            return Finding("finite", "fail", share, evidence, hint, "overflow")
    for length, out in sweep.outs.items():
        if not bool(out.isfinite().all()):
            share = float((~out.isfinite()).float().mean())
            evidence = f"for {length} token{'s' if length > 1 else ''}, {share:.0%} of the outputs are NaN or infinite"
            hint = "a row that may attend to nothing, a division by a length or by a variance of 0, or an overflow"
            return Finding("finite", "fail", share, evidence, hint, "overflow")
    return Finding("finite", "pass", 0.0, f"outputs are finite for inputs × {', '.join(f'{s:g}' for s in sizes)}")


def check_lengths(impl: Implementation, sweep: Sweep) -> list[Finding]:
    """Which lengths of the sweep run: one token must, if two and three do."""
    error = sweep.refused.get(1)
    if error is not None and {2, 3} <= set(sweep.outs) and not is_refusal(error):
        evidence = f"one token raises {describe_error(error)}; two tokens do not"
        hint = "an axis of size 1 is lost: squeeze() without an axis, or a view that drops it"
        return [Finding("lengths", "fail", 1.0, evidence, hint, "one token")]
    lengths = ", ".join(map(str, sweep.lengths))
    more = describe_lengths(sweep)
    return [Finding("lengths", "described", None, f"runs at {lengths} tokens{f'; {more}' if more else ''}")]
