"""Grade span corruption: a document with a masked span, and the span's text at the end.

"Where was Ada born?" → "Where w⁇ born?⁇as Ada□□□□": prefix ⁇ suffix ⁇ masked, then padding to the block size.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from qkv.check.grading.client import Call, Sandbox, SubmissionError
from qkv.check.grading.exercises.common import Exercise, GradedCheck, mix_seeds
from qkv.check.report import Finding

if TYPE_CHECKING:
    from qkv.check.grading.rubric import GradedExercise

NUM_DOCUMENTS = 60
RARE = 1e-6  # how often a right submission may fail a check by chance
LETTERS = string.ascii_letters + string.digits + " ,.äéß"
SETTINGS = {"block_size", "mask", "pad", "min_length", "max_length", "masked_share"}
FORM_LINES = (
    r"MASK(_CHAR)?\s*\+|\+\s*(self\.)?MASK",
    r"\+\s*\[?\s*mask|mask\w*\]?\s*\+|cat\(|join\(",
    r"MASK_CHAR|⁇.*⁇",
)
SPAN_LINES = {
    "length": (r"(PAD|pad|□)\w*['\"]?\s*\*|\*\s*(self\.)?(PAD|pad|□)|[lr]just", r"(?#last)return "),
    "padding": (r"(?#last)PAD_?CHAR\s*\*|\*\s*(self\.)?(PAD|MASK)|MASK_?CHAR\s*\*|[lr]just|pad\(", r"PAD|MASK"),
    "form": FORM_LINES,
    "content": (*FORM_LINES, r"prefix|suffix|mask"),
    "cut": (r"7\s*/\s*8|\.875|trunc", r"rand|block_size"),
    "masked share": (r"mask\w*_?len|len\w*_?mask|span\w*\s*=|n_mask|num_mask", r"\b4\b|0?\.25", r"rand"),
    "span position": (r"^\s*\w*(start|begin|left|pos|offset|idx)\w*\s*=(?!=)", r"rand(int|range|om)", r"prefix"),
    "randomness": (r"seed|rand",),
}  # the lines that a check is about, in any code that corrupts a span


@dataclass(frozen=True)
class Corrupted:
    """A document, the block size, and the text that the submission made of it."""

    document: str
    block_size: int
    text: str


@dataclass(frozen=True)
class GradedSpans:
    """function(document, block_size, rng) -> text, called many times. max_length is a share of the block size."""

    sandbox: Sandbox
    mask: str
    pad: str
    min_length: int
    max_length: float
    masked_share: tuple[float, float]
    results: tuple[Corrupted, ...]
    ends_with_mask: bool | None = False  # None: the text may end with a mask sign, or not
    may_mask_nothing: bool = False

    def split(self, result: Corrupted) -> tuple[str, str, str] | None:
        """Prefix, suffix and masked span; None where the text does not have that form."""
        text = result.text.rstrip(self.pad)
        if self.ends_with_mask is None and text.count(self.mask) == 3:
            text = text.removesuffix(self.mask)
        pieces = text.split(self.mask)
        if len(pieces) != 3 or self.pad in "".join(pieces):
            return None
        prefix, suffix, masked = pieces
        if not masked and not result.document.startswith(prefix + suffix) and self.rejoin(result):
            return None  # what looks like prefix ⁇ suffix ⁇ is all the rest ⁇ masked ⁇, or prefix ⁇ suffix masked ⁇
        return prefix, suffix, masked

    def without_padding(self, text: str) -> str:
        """The text without what pads it, on the wrong side too, or with mask signs; ⁇⁇ at the end is padding."""
        text = text.strip(self.pad)
        end = text.rstrip(self.mask)
        return f"{end}{self.mask}" if len(text) - len(end) > 2 else text

    def find_parts(self, result: Corrupted) -> tuple[str, str, str] | None:
        """Prefix, suffix and masked span, also of a text of another form if the document tells them apart.

        A wrong form is judged by itself; lengths and positions are measured all the same.
        """
        parts = self.parts_in_text(result)
        if parts is not None and self.repeats_span(result, parts):
            return parts[0], parts[1].removeprefix(parts[2]), parts[2]
        if parts is not None and not parts[2] and not result.document.startswith(parts[0] + parts[1]):
            start = result.document.find(parts[1], len(parts[0])) if len(parts[1]) >= 4 else -1
            return None if start < 0 else (parts[0], parts[1], result.document[len(parts[0]) : start])
        return parts or self._fill_in(self.plain(result))

    def plain(self, result: Corrupted) -> Corrupted:
        return replace(result, text=self.without_padding(result.text))

    def parts_in_text(self, result: Corrupted) -> tuple[str, str, str] | None:
        """Prefix, suffix and masked span, if the text has all of them."""
        plain = self.plain(result)
        return self.split(result) or self.split(plain) or self.rejoin(plain)

    def rejoin(self, result: Corrupted) -> tuple[str, str, str] | None:
        """The parts of a text that has them all, but with mask signs missing or added."""
        text = result.text.rstrip(self.pad)
        prefix, _, rest = text.partition(self.mask)
        rest = rest.replace(self.mask, "")
        if self.mask not in text or len(prefix) + len(rest) > len(result.document):
            return None
        for cut in range(len(rest) + 1):
            if result.document.startswith(prefix + rest[cut:] + rest[:cut]):
                return prefix, rest[:cut], rest[cut:]
        return self._without_first_sign(prefix, rest, result.document)

    def _without_first_sign(self, text: str, masked: str, document: str) -> tuple[str, str, str] | None:
        """The parts where only one sign is left, before the masked span: the document tells where it was."""
        for start in range(len(text) + 1):
            if document.startswith(text[:start] + masked + text[start:]):
                return text[:start], text[start:], masked
        return None

    def _fill_in(self, result: Corrupted) -> tuple[str, str, str] | None:
        """The parts of a text in which mask signs stand where the span was: the document tells what it was."""
        text = result.text.rstrip(self.pad)
        signs = text.count(self.mask)
        prefix, suffix = text.partition(self.mask)[0], text.rpartition(self.mask)[2]
        if (
            not signs
            or len(suffix) < 4
            or len(text) != len(prefix) + signs + len(suffix)
            or not result.document.startswith(prefix)
        ):
            return None
        start = len(prefix) + (signs if signs > 1 else 0)
        start = result.document.find(suffix, start)
        return None if start < 0 else (prefix, suffix, result.document[len(prefix) : start])

    def repeats_span(self, result: Corrupted, parts: tuple[str, str, str]) -> bool:
        """Whether the masked span was left in the text, before the suffix."""
        prefix, suffix, masked = parts
        return bool(masked) and suffix.startswith(masked) and result.document.startswith(prefix + suffix)

    def masked_part(self, result: Corrupted, parts: tuple[str, str, str]) -> str:
        """The masked span: the last part, unless the text has suffix and span in the other order."""
        prefix, second, last = parts
        in_order = result.document.startswith(prefix + last + second)
        return second if not in_order and result.document.startswith(prefix + second + last) else last

    @cached_property
    def loses_suffix(self) -> bool:
        """Whether the suffix is left out of every text: then neither the cut nor the masked share can be measured."""
        texts = [result for result in self.results if len(result.document) > result.block_size]
        parts = [found for result in texts if (found := self.split(self.plain(result)))]
        if not parts or any(suffix for _, suffix, _ in parts):
            return False
        lengths = [len(prefix + masked) for prefix, _, masked in parts]
        shares = [len(masked) / max(1, len(prefix + masked)) for prefix, _, masked in parts]
        longest = int(self.max_length * self.results[0].block_size)
        in_range = self.min_length <= min(lengths) and max(lengths) > longest - 8
        return not in_range and sum(shares) / len(shares) > self.masked_share[1]

    def spans(self) -> list[tuple[str, str, str]]:
        """Prefix, suffix and masked span of every text in which they are found."""
        return [parts for result in self.results if (parts := self.find_parts(result)) is not None]


def prepare(sandbox: Sandbox, rubric: GradedExercise) -> GradedSpans:
    """Draw documents, a third of them short, and have all of them corrupted."""
    settings = rubric.interface.settings
    block_size = settings["block_size"]
    rng = random.Random(mix_seeds(sandbox.seed, 70))
    cases = []
    for number in range(NUM_DOCUMENTS):
        if number % 3:
            length = rng.randint(2 * block_size, 3 * block_size)
        else:
            length = rng.randint(settings["min_length"], block_size // 2)
        cases.append(("".join(rng.choice(LETTERS) for _ in range(length)), block_size, rng.getrandbits(31)))
    texts = _corrupt(sandbox, cases)
    results = tuple(Corrupted(document, size, text) for (document, size, _), text in zip(cases, texts, strict=True))
    least, most = settings["masked_share"]
    return GradedSpans(
        sandbox=sandbox,
        mask=settings["mask"],
        pad=settings["pad"],
        min_length=settings["min_length"],
        max_length=settings["max_length"],
        masked_share=(least, most),
        results=results,
    )


def _corrupt(sandbox: Sandbox, cases: list[tuple[str, int, int]]) -> list[str]:
    calls = [Call((document, block_size, {"random": seed})) for document, block_size, seed in cases]
    results, _ = sandbox.call(calls)
    if not all(isinstance(result, str) for result in results):
        raise SubmissionError("it returned no text")
    return [str(result) for result in results]


def require_response_of_spans(spans: GradedSpans) -> None:
    if len({result.text for result in spans.results}) == 1:
        raise SubmissionError("its text is the same for every document")


def check_length(spans: GradedSpans) -> list[Finding]:
    wrong = [r for r in spans.results if len(r.text) != r.block_size and not _overflows_by_repeating(spans, r)]
    hint = "pad with the padding character up to the block size, and never beyond"

    def describe(result: Corrupted) -> str:
        return f"{len(result.text)} characters, expected {result.block_size}"

    return [_count_wrong("length", spans, wrong, describe, hint)]


def _overflows_by_repeating(spans: GradedSpans, result: Corrupted) -> bool:
    """Whether a text is too long only because its masked span is in it twice, which is judged by the content."""
    parts = spans.parts_in_text(result)
    if parts is None or not spans.repeats_span(result, parts) or spans.pad in result.text:
        return False
    return len(result.text) - len(parts[2]) <= result.block_size


def check_form(spans: GradedSpans) -> list[Finding]:
    wrong = [result for result in spans.results if spans.split(result) is None]
    hint = f"prefix {spans.mask} suffix {spans.mask} masked, then only {spans.pad}"

    def describe(result: Corrupted) -> str:
        return f"{result.text.count(spans.mask)} mask characters in {_shorten(result)}"

    cause, family = (_explain_form(spans, wrong) if wrong else None) or (hint, None)
    return [replace(_count_wrong("form", spans, wrong, describe, cause), family=family if wrong else None)]


def _explain_form(spans: GradedSpans, wrong: list[Corrupted]) -> tuple[str, str] | None:
    """What is wrong with the form of most texts, and the kind of line that it is about."""
    mask, pad = spans.mask, spans.pad
    texts = [result.text for result in wrong]

    def most(found: Iterable[bool]) -> bool:
        return sum(found) > 0.5 * len(wrong)

    if most(text.startswith(pad) for text in texts):
        return f"the padding comes before the text: put {pad} after it", "padding"
    if most(text.endswith(mask * 4) for text in texts):
        return f"the text is padded with {mask}: pad it with {pad}", "padding"
    if most(spans.plain(result).text.count(mask) < 3 and spans.rejoin(spans.plain(result)) is not None
            for result in wrong) and not any(spans.split(spans.plain(result)) for result in wrong):  # fmt: skip
        words = f"a {mask} is missing, so prefix and suffix, or suffix and span, cannot be told apart"
        return f"{words}: prefix {mask} suffix {mask} masked", "form"
    return None


def check_content(spans: GradedSpans) -> list[Finding]:
    """prefix + masked + suffix is the beginning of the document."""
    if spans.loses_suffix:
        evidence = f"in no text there is anything between the two {spans.mask}, so the suffix is lost"
        hint = f"prefix {spans.mask} suffix {spans.mask} masked: keep what comes after the masked span"
        return [Finding("content", "fail", 1.0, evidence, hint)]
    wrong = _wrong_content(spans)
    hint = "prefix + masked + suffix must be the beginning of the document"

    def describe(result: Corrupted) -> str:
        return f"{_shorten(result)} does not contain its document in order"

    words = [words for result in wrong if (words := _explain_content(spans, result)) is not None]
    common = max(set(words), key=words.count) if words else hint
    return [_count_wrong("content", spans, wrong, describe, common if 2 * len(words) > len(wrong) else hint)]


def _wrong_content(spans: GradedSpans) -> list[Corrupted]:
    """Texts whose prefix + masked + suffix is not the beginning of the document."""
    wrong = []
    for result in spans.results:
        parts = spans.parts_in_text(result)
        if parts is None or not result.document.startswith(parts[0] + parts[2] + parts[1]):
            wrong.append(result)
    return wrong


def _explain_content(spans: GradedSpans, result: Corrupted) -> str | None:
    """Where the parts of a text stand in its document."""
    parts = spans.parts_in_text(result)
    if parts is None:
        return None
    prefix, second, last = parts
    document, sign = result.document, spans.mask
    if document.startswith(prefix + second + last):
        return f"the masked span is between the two {sign}; it must come last: prefix {sign} suffix {sign} masked"
    if document.startswith(prefix + last[::-1] + second):
        return "the masked span is reversed: keep its characters in order"
    if spans.repeats_span(result, parts):
        return f"the masked span is also in the suffix: the suffix begins after it. prefix {sign} suffix {sign} masked"
    for place, words in ((len(prefix), "before"), (len(prefix) + len(last), "after")):
        for count in (1, 2):
            size = f"{count} character{'s' * (count > 1)} {words} the masked span"
            if (document[:place] + document[place + count :]).startswith(prefix + last + second):
                return f"lost: {size}. Prefix, span and suffix must meet without a gap"
            if place >= count and (document[:place] + document[place - count :]).startswith(prefix + last + second):
                return f"twice in the text: {size}. Prefix, span and suffix must meet without an overlap"
    return None


def _without_suffix(check: str) -> Finding:
    return Finding(check, "pass", None, "it cannot be measured without the suffix, which is judged by the content")


def check_cut(spans: GradedSpans) -> list[Finding]:
    """Documents are cut at a random length, neither too short nor too long."""
    if spans.loses_suffix:
        return [_without_suffix("cut")]
    lengths = [
        len("".join(parts))
        for result in spans.results
        if len(result.document) > result.block_size and (parts := spans.find_parts(result)) is not None
    ]
    if not lengths:
        return [_no_valid_text("cut")]
    block_size = spans.results[0].block_size
    least, most, different = min(lengths), max(lengths), len(set(lengths))
    evidence = (
        f"long documents are cut at {least} to {most} characters, {different} different lengths in {len(lengths)}"
    )
    longest = int(spans.max_length * block_size)
    lost = 2 if len(_wrong_content(spans)) > len(spans.results) / 2 else 0  # characters, which is judged by the content
    in_range = least >= spans.min_length - lost and most <= longest + lost
    ends = block_size // 16
    seen = 1 - ends / (longest - spans.min_length + 1)
    if in_range and seen ** len(lengths) < RARE:  # enough documents to see both ends of the range
        in_range = most > longest - ends and least < spans.min_length + 2 * ends
    if in_range and different >= 5 and most - least >= block_size / 4:
        return [Finding("cut", "pass", None, evidence)]
    hint = f"cut at a random length: every length from {spans.min_length} to {longest} characters must be possible"
    if least > block_size:
        evidence = f"long documents are not cut: texts have {least} to {most} characters with block_size {block_size}"
    return [Finding("cut", "fail", None, evidence, hint)]


def check_masked_share(spans: GradedSpans) -> list[Finding]:
    """About a quarter is masked, on average, and not always the same number of characters."""
    if spans.loses_suffix:
        return [_without_suffix("masked share")]
    found = [
        (len(spans.masked_part(result, parts)), sum(map(len, parts)))
        for result in spans.results
        if (parts := spans.find_parts(result)) is not None
    ]
    shares = [masked / total for masked, total in found if total]
    if not shares:
        return [_no_valid_text("masked share")]
    mean, different = sum(shares) / len(shares), len({masked for masked, _ in found})
    longer = [masked / total for masked, total in found if total >= 32]
    if longer and max(longer) - min(longer) < 0.03:
        evidence = f"the same share of every text is masked, {mean:.0%}"
        return [Finding("masked share", "fail", mean, evidence, "draw the length of the span: a quarter on average")]
    evidence = f"{mean:.0%} is masked on average, {different} different lengths in {len(shares)}"
    if (
        spans.masked_share[0] <= mean <= spans.masked_share[1]
        and different >= 4
        and (spans.may_mask_nothing or min(shares) > 0 or 2 * len(_wrong_content(spans)) > len(spans.results))
    ):
        return [Finding("masked share", "pass", mean, evidence)]
    hint = "mask a random number of characters, a quarter of the text on average, and at least one"
    return [Finding("masked share", "fail", mean, evidence, hint)]


def check_span_position(spans: GradedSpans) -> list[Finding]:
    """The masked span can begin anywhere."""
    starts = [len(prefix) / max(1, len(prefix) + len(suffix)) for prefix, suffix, _ in spans.spans()]
    if not starts:
        return [_no_valid_text("span position")]
    evidence = f"the span begins at {min(starts):.0%} to {max(starts):.0%} of the unmasked text"
    if max(starts) - min(starts) >= 0.5:
        return [Finding("span position", "pass", None, evidence)]
    return [Finding("span position", "fail", None, evidence, "draw where the span begins")]


def check_randomness(spans: GradedSpans) -> list[Finding]:
    """The same document and generator give the same text; another generator gives another."""
    rng = random.Random(mix_seeds(spans.sandbox.seed, 71))
    document, block_size = spans.results[1].document, spans.results[1].block_size
    cases = [(document, block_size, rng.getrandbits(31)) for _ in range(6)]
    first, again = _corrupt(spans.sandbox, cases), _corrupt(spans.sandbox, cases)
    if first != again:
        hint = "draw from rng, the generator argument, and from nothing else"
        return [Finding("randomness", "fail", 1.0, "the same generator gave another text", hint)]
    if len(set(first)) < 3:
        hint = "draw from rng, the generator argument"
        return [Finding("randomness", "fail", 1.0, "different generators gave the same text", hint)]
    evidence = "the same generator gives the same text, different generators give different texts"
    return [Finding("randomness", "pass", 0.0, evidence)]


def _no_valid_text(check: str) -> Finding:
    evidence = "in no text prefix, suffix and masked span can be told apart, so nothing can be measured"
    return Finding(check, "fail", None, evidence)


def _count_wrong(
    check: str, spans: GradedSpans, wrong: list[Corrupted], describe: Callable[[Corrupted], str], hint: str
) -> Finding:
    count = len(spans.results)
    if not wrong:
        return Finding(check, "pass", 0.0, f"in all {count} texts")
    evidence = f"wrong in {len(wrong)} of {count} texts, first: {describe(wrong[0])}"
    return Finding(check, "fail", len(wrong) / count, evidence, hint)


def _shorten(result: Corrupted) -> str:
    return repr(result.text if len(result.text) <= 40 else f"{result.text[:18]}…{result.text[-18:]}")


def validate(rubric: GradedExercise, where: str) -> None:
    settings = rubric.interface.settings
    if rubric.interface.build is not None or set(settings) != SETTINGS:
        raise ValueError(f"{where}: this exercise is a function, and interface must have {', '.join(sorted(SETTINGS))}")
    mask, pad = settings["mask"], settings["pad"]
    if any(len(sign) != 1 or sign in LETTERS for sign in (mask, pad)) or mask == pad:
        raise ValueError(f"{where}: mask and pad must be two different characters that occur in no document")


SPAN_CORRUPTION = Exercise(
    prepare,
    (
        GradedCheck(("length",), check_length),
        GradedCheck(("form",), check_form),
        GradedCheck(("content",), check_content),
        GradedCheck(("cut",), check_cut),
        GradedCheck(("masked share",), check_masked_share),
        GradedCheck(("span position",), check_span_position),
        GradedCheck(("randomness",), check_randomness),
    ),
    validate,
    require_response_of_spans,
    lines=SPAN_LINES,
)
