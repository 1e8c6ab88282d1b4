"""What a submission may try, and that it changes nothing: each attack in a process of its own, behind the walls."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from submissions import ROPE, SPANS

from qkv.check.grading import Limits, grade_all, load_rubric, shipped
from qkv.check.grading.batch import refusal
from qkv.check.grading.remote import Call, RefusedError, Remote, UnansweredError, clean
from qkv.cli.main import run as command

ATTACKS = """
import ctypes, glob, os, signal, socket, subprocess, sys, threading, time
import torch

def tell(action):
    try:
        return f"done: {action()}"
    except BaseException as error:
        return f"refused: {type(error).__name__}: {error}"

def attack(name, path=""):
    return ATTACKS[name](path)

def loop(path):
    while True:
        pass

def sleep(path):
    time.sleep(1000)

def stubborn(path):
    for number in range(1, 32):
        try:
            signal.signal(number, signal.SIG_IGN)
        except OSError:
            pass
    loop(path)

def bomb(path):
    return tell(lambda: [os.fork() for _ in range(1000)])

def threads(path):
    return tell(lambda: threading.Thread(target=loop, args=("",)).start())

def program(path):
    return tell(lambda: subprocess.run(["/bin/sh", "-c", "echo hello"]))

def memory(path):
    return tell(lambda: torch.zeros(100 << 30, dtype=torch.uint8).sum())

def files_of_memory(path):
    kept = [os.memfd_create(str(n)) for n in range(1000)]

def network(path):
    return tell(lambda: socket.create_connection(("127.0.0.1", int(path)), 2))

def read(path):
    return tell(lambda: open(path).read())

def write(path):
    return tell(lambda: open(path, "w").write("10"))

def listing(path):
    return tell(lambda: sorted(os.listdir(path)))

def big_file(path):
    return tell(lambda: open("/scratch/big", "wb").write(b"0" * (1 << 30)))

def many_files(path):
    def fill():
        for number in range(1000):
            open(f"/scratch/{number}", "wb").write(b"0" * (1 << 20))
    return tell(fill)

def scratch(path):
    return tell(lambda: (os.listdir("/scratch"), open("/scratch/mine", "w").write("x")))

def link(path):
    def follow():
        os.symlink(path, "/scratch/link")
        return open("/scratch/link").read()
    return tell(follow)

def kill(path):
    return tell(lambda: (os.getppid(), os.kill(-1, 9), os.killpg(0, 0)))

def parent(path):
    return tell(lambda: os.kill(int(path), 9))

def processes(path):
    return tell(lambda: [name for name in os.listdir("/proc") if name.isdigit()])

def mounts(path):
    libc = ctypes.CDLL(None, use_errno=True)
    return str([libc.mount(b"none", b"/usr/lib", None, 4096 | 32, None), libc.umount2(b"/scratch", 2),
                libc.unshare(0x10000000), libc.unshare(0x20000), libc.chroot(b"/scratch")])

def rights(path):
    return str((os.getuid(), tell(lambda: os.setuid(0))))

def ours(path):
    return tell(lambda: __import__("qkv"))

def environment(path):
    return str(sorted(os.environ)) + str(sys.argv)

def exit(path):
    sys.exit(0)

def exit_hard(path):
    os._exit(0)

def abort(path):
    os.abort()

def crash(path):
    ctypes.string_at(0)

def recursion(path):
    return recursion(path)

def printing(path):
    def pour():
        while True:
            os.write(1, b"0" * (1 << 20))
    return tell(pour)

def forge(content):
    os.pwrite(4, content, 0)
    os._exit(0)

def garbage(path):
    forge(os.urandom(5000))

def giant(path):
    os.ftruncate(4, 16 << 20)
    os._exit(0)

def too_giant(path):
    return tell(lambda: os.ftruncate(4, 1 << 40))

def deep(path):
    header = (b"[" * 100000).ljust(100008)
    forge(len(header).to_bytes(8, "little") + header)

def protocol(path):
    for number in range(3, 64):
        try:
            os.write(number, b'{"ended": "exit", "code": 0}')
        except OSError:
            pass
    os._exit(0)

def wrong_kind(path):
    return 3

def surrogate(path):
    return "\\ud800"

ATTACKS = {name: value for name, value in globals().items() if callable(value)}
"""
ANSWERED = {
    "bomb": "refused: BlockingIOError",
    "threads": "refused: RuntimeError: can't start new thread",
    "program": "refused: ",
    "memory": "refused: RuntimeError",
    "big_file": "refused: ",
    "many_files": "refused: OSError",
    "kill": "refused: ",
    "mounts": "[-1, -1, -1, -1, -1]",
    "ours": "refused: ModuleNotFoundError",
    "printing": "refused: OSError",
    "too_giant": "refused: OSError",
    "scratch": "done: ([], 1)",
}
UNANSWERED = {
    "files_of_memory": "OSError",
    "exit": "SystemExit",
    "exit_hard": "without handing anything back",
    "abort": "ended by signal",
    "crash": "SIGSEGV",
    "recursion": "RecursionError",
    "garbage": "no message",
    "giant": "no message",
    "deep": "no message",
    "protocol": "no message",
    "wrong_kind": "returned a int",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="walls are made of Linux' namespaces")


@pytest.fixture(scope="module")
def remote():
    sandbox = Remote(ATTACKS, "attack", None, seed=1, limits=Limits(seconds=1, patience=100))
    try:
        sandbox.__enter__()
    except RefusedError as error:
        pytest.skip(f"this system allows no walls: {error}")
    yield sandbox
    sandbox.__exit__()


def tried(remote, name, path=""):
    (result,), _ = remote.call([Call((name, path))])
    return result


@pytest.mark.parametrize("name", ANSWERED)
def test_an_attack_is_refused(remote, name):
    assert tried(remote, name).startswith(ANSWERED[name])


@pytest.mark.parametrize("name", UNANSWERED)
def test_a_process_that_ends_or_forges_hands_back_nothing(remote, name):
    with pytest.raises(UnansweredError, match=UNANSWERED[name]):
        tried(remote, name)
    assert tried(remote, "scratch") == "done: ([], 1)"  # and the next call knows nothing of it


@pytest.mark.parametrize("name", ["loop", "stubborn", pytest.param("sleep", marks=pytest.mark.long)])
def test_what_never_ends_is_ended(remote, name):
    with pytest.raises(UnansweredError, match="did not answer within 1 seconds"):
        tried(remote, name)


def test_the_network_is_not_there(remote):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "refused: " in tried(remote, "network", str(server.getsockname()[1]))


def test_no_file_of_the_system_is_read_or_written(remote, tmp_path):
    neighbour = tmp_path / "neighbour.py"
    neighbour.write_text("secret")
    for name in ("read", "write", "link"):
        assert "refused: " in tried(remote, name, str(neighbour))
    assert neighbour.read_text() == "secret"
    for place in ("/etc/passwd", "/etc/shadow", str(Path(__file__)), str(Path.home()), "/usr/lib/x", "/submission/x"):
        assert "refused: " in tried(remote, "write", place)
    assert "refused: " in tried(remote, "read", "/etc/passwd")
    assert "refused: " in tried(remote, "listing", str(tmp_path))
    for rubric in shipped().values():
        assert "refused: " in tried(remote, "read", str(rubric))


def test_no_other_process_is_seen_or_signalled(remote):
    assert tried(remote, "processes") in ("done: ['1']", "done: []")
    assert tried(remote, "parent", str(os.getpid())).startswith("refused: ProcessLookupError")


def test_it_is_nobody_and_stays_so(remote):
    said = tried(remote, "rights")
    assert not said.startswith("(0,")
    assert "refused: " in said
    assert "QKV" not in tried(remote, "environment") and "seed" not in tried(remote, "environment")


def test_what_is_no_text_is_no_answer_or_harmless(remote):
    try:
        text = tried(remote, "surrogate")
    except UnansweredError:
        return
    assert clean(text) == ""


@pytest.mark.long
def test_nothing_survives_the_sandbox():
    with Remote(SPANS, "corrupt", None, seed=1) as sandbox:
        number = sandbox._process.pid
        sandbox.describe()
    living = []
    for about in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = about.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == number and state != "Z":
            living.append(about)
    assert living == []


LIAR = """
import os, sys, torch
from inside import answer, wire
torch.softmax = torch.allclose = torch.equal = lambda *a, **k: True
torch.Tensor.__sub__ = torch.Tensor.abs = lambda *a, **k: torch.zeros(1)
answer._called = lambda *a, **k: "tensor"
wire.encode = lambda *a, **k: b"10 of 10"
sys.modules["safetensors"] = None
def apply_rope(x, positions):
    return x
"""
REPLAYER = """
import os, torch
seen = []
def apply_rope(x, positions):
    seen.append(x)
    name = "/scratch/seen"
    if os.path.exists(name) or len(seen) > 1:
        raise RuntimeError("I have seen this before")
    open(name, "w").write("x")
    return seen[0]
"""


def write(folder, **sources):
    folder.mkdir(exist_ok=True)
    paths = []
    for name, source in sources.items():
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(source, encoding="utf-8")
    return paths


def test_hostile_files_change_no_grade_of_their_own_or_of_a_neighbour(tmp_path, remote):
    paths = write(tmp_path / "in", ada=ROPE, liar=LIAR, replayer=REPLAYER)
    link = tmp_path / "in" / "link.py"
    link.symlink_to(paths[0])
    os.mkfifo(tmp_path / "in" / "pipe.py")
    (tmp_path / "in" / "long.py").write_text("#" * 2_000_000)
    (tmp_path / "in" / "latin.py").write_bytes(b"# \xe9\xe8")
    others = [tmp_path / "in" / f"{name}.py" for name in ("link", "pipe", "long", "latin")]
    grades = {grade.student: grade for grade in grade_all(load_rubric("rope"), [*paths, *others], seed=5)}
    assert grades["ada"].total == 10
    assert grades["liar"].total == 0, grades["liar"]
    assert grades["replayer"].total == 2  # for the shape and the gradient of returning its input
    assert "I have seen" not in str(grades["replayer"])
    said = {name: grades[name].remark for name in ("link", "pipe", "long", "latin")}
    assert said == {
        "link": "it is a symbolic link, which is not followed",
        "pipe": "it is no plain file",
        "long": "it has 2000000 bytes; 1000000 are allowed",
        "latin": "it is no text in UTF-8",
    }
    assert all(grades[name].total == 0 for name in said)


@pytest.mark.long
def test_loops_bombs_and_exits_among_honest_files(tmp_path):
    sources = {
        "loop_at_import": "while True: pass",
        "loop": "def apply_rope(x, positions):\n    while True: pass",
        "bomb": "import os\nwhile True: os.fork()",
        "hog": "import torch\ntorch.zeros(100 << 30)",
        "quitter": "import os\nos._exit(0)",
        "printer": "while True: print('10 of 10' * 1000)",
        "ada": ROPE,
        "alan": ROPE,
    }
    rubric = load_rubric("rope")
    limited = type(rubric)(**{**rubric.__dict__, "limits": Limits(seconds=2)})
    grades = {grade.student: grade for grade in grade_all(limited, write(tmp_path / "in", **sources), seed=6)}
    assert {name: grade.total for name, grade in grades.items()} == {
        **dict.fromkeys(sources, 0.0),
        "ada": 10.0,
        "alan": 10.0,
    }
    assert all(grade.remark for name, grade in grades.items() if name not in ("ada", "alan"))


def test_the_command_writes_a_csv_and_the_same_seed_gives_the_same(tmp_path, capsys, remote):
    wrong = SPANS.replace("rng.uniform(0.1, 0.4)", "rng.uniform(0.4, 0.6)")
    paths = write(tmp_path / "in", **{"ada": SPANS, "=alan": wrong})
    out = tmp_path / "grades.csv"
    line = ["check", "--rubric", "span-corruption", *map(str, paths), "--csv", str(out), "--seed", "11", "--json"]
    assert command(line) == 0
    shown = capsys.readouterr()
    read = json.loads(shown.out)
    assert [grade["total"] for grade in read["grades"]] == [10, 9]
    assert "2 of 2: " in shown.err
    rows = out.read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith(
        "student,length,form,content in order,cut,about a quarter,anywhere,randomness,total,remark"
    )
    assert rows[1] == "ada,1,2,3,1,1,1,1,10,,11"
    assert rows[2].startswith("'=alan,1,2,3,1,0,1,1,9,")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grades.csv", "in"]


def test_ctrl_c_stops_everything(tmp_path):
    import signal
    import time

    paths = write(tmp_path / "in", sleeper="import time\ntime.sleep(1000)", other="import time\ntime.sleep(1000)")
    line = [
        sys.executable,
        "-m",
        "qkv",
        "check",
        "--rubric",
        "rope",
        *map(str, paths),
        "--csv",
        str(tmp_path / "g.csv"),
    ]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (130, 2), said  # 2 where the system allows no walls
    assert not (tmp_path / "g.csv").exists()


def test_a_refusal_says_what_would_help():
    assert "--unsafe" in str(refusal(RefusedError(1, "unshare: Operation not permitted")))


@pytest.mark.long
def test_without_walls_there_are_still_limits():
    with Remote(ATTACKS, "attack", None, seed=1, limits=Limits(seconds=1), walls=False) as sandbox:
        assert tried(sandbox, "memory").startswith("refused: RuntimeError")
        with pytest.raises(UnansweredError, match="did not answer"):
            tried(sandbox, "loop")
        (out,), _ = sandbox.call([Call(("environment", ""))])
        assert isinstance(out, str)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rubric", "rope"], "name the submissions"),
        (["--rubric", "ropes", "x.py"], "did you mean rope?"),
        (["--rubric", "nothing.toml", "x.py"], "there is no rubric nothing.toml"),
        (["--rubric", "rope", "x.py"], "there is no file x.py"),
        (["--rubric", "rope", "{folder}"], "is a folder; name the files in it"),
        (["--rubric", "rope", "{file}", "--csv", "/nowhere/grades.csv"], "name a file in a folder that exists"),
        (["--rubric", "rope", "{file}", "--csv", "{file}"], "is one of the submissions"),
        (["--rubric", "rope", "{file}", "--jobs", "0"], "--jobs is a number from 1"),
        (["{file}", "{file}"], "belong to grading"),
    ],
)
def test_wrong_use_gets_one_sentence(arguments, said, tmp_path, capsys):
    file = tmp_path / "ada.py"
    file.write_text(ROPE)
    line = [argument.format(file=file, folder=tmp_path) for argument in arguments]
    assert command(["check", *line]) == 2
    shown = capsys.readouterr()
    assert said in shown.err.replace("\n", " ")
    assert shown.out == ""


def test_the_rubrics_are_listed_with_their_interfaces(capsys):
    assert command(["check", "--rubrics", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["rope"]["points"] == 10
    assert "apply_rope(x, positions)" in listed["rope"]["interface"]


def test_draws_of_checks_come_from_the_grading_seed_alone():
    from qkv.check.grading.secret import Salted

    def draw(seed):
        with Salted(seed):
            generator = torch.Generator().manual_seed(4)
            return torch.cat((torch.randn(3, generator=generator), torch.randn(3, generator=generator), torch.rand(2)))

    assert torch.equal(draw(1), draw(1))
    assert not torch.isclose(draw(1), draw(2)).any()
    assert len(set(draw(1).tolist())) == 8
