"""Random wrong command lines: good ones with arguments replaced, added, dropped or doubled."""

import random
from pathlib import Path

# they are quick, or become wrong; what turns out to be valid and long is stopped with SIGTERM
GOOD = (
    "byhand --example three-tokens --scale 1 --precision 4",
    "byhand --example causal --loss sum --html out.html",
    "byhand --generate 3 --seed 7 --folder class --tokens 3",
    "byhand --verify answer.toml --csv grades.csv",
    "byhand --q 1_0 --k 1_0;0_1 --v 4;8 --heads 1 --causal",
    "claims copy --seed 1 --json",
    "claims scale --set d=64 --html report.html",
    "questions --course nyu --json",
    "check torch.nn:MultiheadAttention --contract textbook --json",
    "check student.py:CausalSelfAttention --contract textbook --seed 3 --html report.html",
    "grade rope in.py --csv grades.csv --seed 1 --jobs 2 --seconds 5",
    "grade rope in.py in.py --feedback feedback --fresh",
    "mutants causal --json",
    "train vit-digits --show --set model.dim=64 --seed 1",
    "train gpt-text --show --model rnn --minutes 1 --epochs 2",
    "train vit-digits --steps 2 --folder run --set train.batch_size=8 --quiet",
    "train birthplaces --show --preset cs224n-a5 --data data.tsv",
    "runs runs --json",
    "eval runs/a --seed 1 --json",
    "use qkv:shakespeare To_be --max-new-tokens 3 --temperature 0.5 --top-k 3 --top-p 0.9 --seed 1",
    "use qkv:digits image.png --json",
    "use qkv:spoken-digits sound.wav --threshold 0.5",
    "look qkv:shakespeare To_be --layer 1 --head 2 --query 3",
    "look qkv:shakespeare To_be --ablate 1.2 --scale x2 --mask-edge 1.1:2:1 --png out.png",
    "look qkv:digits image.png --html look.html --rollout",
    "look qkv:biographies Ada --logit-lens --compare Bob --json",
    "convert qkv:digits out --to hf --json",
    "convert model.bin out --to qkv",
    "studio missing --port 99999 --runs runs",
    "studio --port -1",
    "bench nothing --threads 1",
    "reproduce nothing --seed 1",
    "doctor --nothing",
    "tour --nothing",
    "help train",
)
BAD = (
    "", " ", "-", "--", "---", "-1", "0", "1e999", "nan", "inf", "-inf", "1/0", "½", "99999999999999999999999999", "1_000", "0x10",
    "true", "none", "[]", "{}", "\x00", "\ud800", "\udcff.toml", "a" * 10_000, "é" * 300, "\n\n", "\x1b[31m", "%s%n", "$HOME", "~",
    ".", "..", "/", "/dev/null", "/dev/full", "/dev/zero", "/proc/self/mem", "/nowhere/x", "pipe", "link", "loop", "folder",
    "unreadable", "empty", "binary", "nested.json", "nested.toml", "--help=3", "--json=maybe", "--seed=nan", "--seed", "--debug=1",
    "--no-json", "--set", "model.dim=", "=", "a=b=c", "model..dim=3", "model.layers=0", "model.layers=1000000000", "model.dim=1e30",
    "train.batch_size=-1", "qkv:", "qkv:nothing", "a/b/c", "../x", "CON", "runs/a", "1.1", "1.1:1:1", "99.99", "x", "; rm -rf x",
)  # fmt: skip


def make_invocation(rng: random.Random) -> list[str]:
    """One wrong command line."""
    words = [word.replace("_", " ") for word in rng.choice(GOOD).split()]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(words))
        kind = rng.randrange(7)
        if kind < 3:
            words[at if rng.random() < 0.1 else max(at, min(1, len(words) - 1))] = rng.choice(BAD)
        elif kind == 3:
            words.insert(at + 1, rng.choice(BAD))
        elif kind == 4 and len(words) > 1:
            del words[max(at, 1)]
        elif kind == 5:
            words += words[max(at, 1) :]
        else:
            options = [word for line in GOOD for word in line.split() if word.startswith("--")]
            words += [rng.choice(options), rng.choice(BAD)]
    if words[0] == "studio" and not {"99999", "-1"} & set(words):
        words += ["--port", "70000"]  # a valid one would serve forever
    return words


def make_folder(folder: Path, examples: Path) -> None:
    """The files that command lines name: good ones and strange ones."""
    import os

    folder.mkdir(parents=True)
    (folder / "answer.toml").write_bytes((examples / "answer.toml").read_bytes())
    (folder / "student.py").write_bytes((examples / "student.py").read_bytes())
    (folder / "in.py").write_text("def apply_rope(x, positions):\n    return x\n")
    (folder / "folder").mkdir()
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(256)) * 16)
    (folder / "nested.json").write_text("[" * 100_000)
    (folder / "nested.toml").write_text("a = " + "[" * 100_000)
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("missing")
    (folder / "loop").symlink_to("loop")
    (folder / "unreadable").touch(mode=0o000)
