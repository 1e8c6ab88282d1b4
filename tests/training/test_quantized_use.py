"""`qkv use --quantize int8` says what rounding costs, and generates nearly the same text."""

from qkv.cli.main import run


def test_use_quantize_prints_the_cost_in_perplexity(capsys):
    command = ["use", "qkv:shakespeare", "ROMEO:", "--temperature", "0", "--max-new-tokens", "20"]
    assert run([*command, "--quantize", "int8"]) == 0
    shown = capsys.readouterr()
    assert "perplexity on 512 tokens of Shakespeare from" in shown.err
    change = float(shown.err.split("(")[-1].split(" %")[0])
    assert abs(change) < 1
    assert shown.out.startswith("ROMEO:")


def test_use_quantize_works_for_other_tasks_and_refuses_other_kinds(capsys, tmp_path):
    from PIL import Image

    Image.new("L", (28, 28)).save(tmp_path / "black.png")
    assert run(["use", "qkv:digits", str(tmp_path / "black.png"), "--quantize", "int8"]) == 0
    assert "rounded to int8" in capsys.readouterr().err
    assert run(["use", "qkv:digits", "x.png", "--quantize", "int4"]) == 2
