"""`qkv questions`: questions that courses ask, the claim that answers each, and the model answers to the sheets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from qkv.cli.console import out, print_json

if TYPE_CHECKING:
    from qkv.claims.courses import CourseAnswer


def questions(*words: str, markdown: bool = False, json: bool = False) -> int:
    """List questions from courses, with the answer, the usual mistake, and the claim that tests it by experiment.

    Without words, all questions are listed, then all homework problems. To print the full model answer to a homework
    problem, give its label, such as N1c or C1a-e; to list the problems of a group or a sheet, give its label, such as
    C2 or C. The homework sheets are NYU Deep Learning homework 4 (N), an assignment on copying and averaging with
    attention (A), CS224N assignment 5 (C) and CSCI 5922 problem set 4 (P).

    Examples:

        qkv questions
        qkv questions average pooling
        qkv questions N1c
        qkv questions C2
        qkv questions N

    Parameters
    ----------
    words
        Show only questions that contain all of these words, or words that begin with them, or their synonyms. Or the
        labels of homework problems, such as N1c P3d.
    markdown
        Print the page docs/questions.md.
    json
        Print the questions as JSON.
    """
    from qkv.claims.courses import find_answers, read_answers, search_answers
    from qkv.claims.questions import as_markdown, search_questions

    if markdown:
        if words:
            raise ValueError("--markdown prints the page of all questions: omit the words")
        print(as_markdown(), end="")
        return 0
    answers = [find_answers(word) for word in words]
    if words and all(answers):
        if len(words) == 1 and len({answer.items[0][:2] for answer in answers[0]}) > 1 and not json:  # a sheet: N
            _print_titles(answers[0])
            return 0
        if len(words) == 1 and len(answers[0]) > 1 and len(words[0]) == 2 and not json:  # a group, such as C2
            return _print_group(words[0].upper(), answers[0])
        return _print_answers([answer for found in answers for answer in found], json)
    found, mentions = search_questions(" ".join(words)), search_answers(" ".join(words)) if words else []
    if not found and not (mentions and not json):
        raise ValueError(
            f"no question contains {' '.join(words)!r}; `qkv questions` lists all of them. Homework problems: N1a to "
            "N6, A1 to A5, C0 to C3c, P1a to P3x"
        )
    if json:
        print_json(
            [
                {
                    "question": entry.question,
                    "claim": entry.claim,
                    "answer": entry.answer,
                    "mistake": entry.mistake,
                    "command": entry.command,
                }
                for entry in found
            ]
        )
        return 0
    for entry in found:
        out().print(Text(entry.question, style="bold"))
        out().print(Text(f"  {entry.answer}"))
        if entry.mistake:
            out().print(Text(f"  usual mistake: {entry.mistake}", style="dim"))
        out().print(Text(f"  {entry.command}\n", style="cyan"))
    if mentions:
        out().print(Text("Homework problems whose answer mentions it:"))
        _print_titles(mentions)
    elif not words:
        _print_titles(read_answers())
        out().print("\nThe model answer to a homework problem: qkv questions N1c", highlight=False)
    return 0


def _print_answers(answers: "list[CourseAnswer]", json: bool) -> int:
    if json:
        print_json([asdict(answer) for answer in answers])
        return 0
    from rich.markdown import Markdown

    for answer in answers:
        out().print(Text(f"{answer.title} ({answer.course})", style="bold"))
        out().print()
        out().print(Markdown(answer.answer, code_theme="bw"))
        out().print()
    return 0


def _print_group(group: str, answers: "list[CourseAnswer]") -> int:
    """The items of a group of a sheet; its introduction, too, if it has one."""
    introduction = [answer for answer in answers if group in answer.items]
    _print_answers(introduction, False)
    _print_titles([answer for answer in answers if answer not in introduction])
    return 0


def _print_titles(answers: "Sequence[CourseAnswer]") -> None:
    """The labels and titles of homework problems, by sheet."""
    course = None
    for answer in answers:
        if answer.course != course:
            course = answer.course
            out().print(Text(course, style="bold"))
        label = answer.items[0]
        title = answer.title.removeprefix(f"{label} ")
        out().print(Text.assemble((f"  qkv questions {label:4}", "cyan"), f"  {title}"))
