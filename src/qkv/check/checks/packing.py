"""Packed documents: several in one row must not see each other, and each counts its places from its own beginning."""

import inspect
from functools import partial

import torch

from qkv.check.contract import Contract
from qkv.check.finding import Finding
from qkv.check.subject import Subject

DOCUMENTS = ("document_ids", "doc_ids", "segment_ids", "sequence_ids", "documents", "seq_ids", "document")


def check_packing(subject: Subject, contract: Contract) -> list[Finding]:
    """For modules that take the number of each token's document."""
    module = subject.module
    if module is None:
        return []
    name = next((known for known in DOCUMENTS if known in inspect.signature(module.forward).parameters), None)
    if name is None:
        return []
    generator = torch.Generator().manual_seed(36)
    n, cut = subject.length, 5
    x = subject.draw(2, n, generator)
    documents = (torch.arange(n) >= cut).long().expand(2, -1)
    first, alone = subject.changed(x, 1, generator), x[:, cut:]
    plain = module.forward
    try:
        module.forward = partial(plain, **{name: documents})
        packed, other, control = (subject.run(y).detach() for y in (x, first, subject.changed(x, cut, generator)))
        module.forward = partial(plain, **{name: documents[:, cut:]})
        by_itself = subject.run(alone).detach()
    finally:
        del module.forward
    moved = float((other - packed)[:, cut:].abs().max())
    may = float((control - packed)[:, cut:].abs().max())
    evidence = f"a token of the first document moved the second by {moved:.2g} (control {may:.2g})"
    if not may > 0:
        return [Finding("packing", "inconclusive", None, evidence)]
    if moved / may > subject.tolerance:
        hint = "documents see each other: positions may begin anew, the mask does not"
        return [Finding("packing", "fail", moved / may, evidence, hint, "packing")]
    off = float((packed[:, cut:] - by_itself).abs().max()) / (float(by_itself.abs().max()) or 1.0)
    said = f"packed, the second document differs by {off:.2g} from itself alone"
    if off > 10 * subject.tolerance:
        hint = "positions run on from one document into the next: count them anew in each"
        return [Finding("packing", "fail", off, said, hint, "packing")]
    return [Finding("packing", "pass", off, f"{evidence}; {said}")]
