"""`qkv questions`: questions that courses ask, and the claim that answers each."""

from rich.text import Text

from qkv.cli.console import out, print_json


def questions(*words: str, markdown: bool = False, json: bool = False) -> int:
    """List questions that courses ask, with the answer, the usual mistake, and the claim that answers by experiment.

    Examples:

        qkv questions
        qkv questions average pooling

    Parameters
    ----------
    words
        Show only the questions in which all these words occur.
    markdown
        Print the page docs/questions.md.
    json
        Print the questions as JSON.
    """
    from qkv.claims.questions import as_markdown, search_questions

    if markdown:
        if words:
            raise ValueError("--markdown prints the page of all questions: omit the words")
        print(as_markdown(), end="")
        return 0
    found = search_questions(" ".join(words))
    if not found:
        raise ValueError(f"no question contains {' '.join(words)!r}; `qkv questions` lists all of them")
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
    return 0
