"""The sandbox: each attack that a submission may try runs in its own process and changes nothing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from submissions import ROPE, SPANS

from qkv.check.grading import Limits, bundled_rubrics, grade_files, load_rubric
from qkv.check.grading.client import Call, Sandbox, SandboxUnavailableError, SubmissionError, clean, missing_features
from qkv.check.grading.exercises.common import SecretDraws
from qkv.check.grading.grade import sandbox_required
from qkv.check.grading.sandbox import fork_server, memory_group
from qkv.cli.main import run as run_command

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
    return tell(lambda: __import__("qkv.nn.attention"))

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

def complex_numbers(path):
    return torch.ones(2, dtype=torch.complex64)

def sparse(path):
    return torch.eye(3).to_sparse()

def too_large(path):
    return torch.zeros(20 << 20, dtype=torch.uint8)

def surrogate(path):
    return "\\ud800"

def system_calls(path):
    libc = ctypes.CDLL(None, use_errno=True)
    tried = {
        "shmget": (29, 0x51, 4096, 0o1666), "semget": (64, 0x51, 1, 0o1666), "msgget": (68, 0x51, 0o1666),
        "keyctl": (250, 0, -3), "vsock": (41, 40, 1, 0), "netlink": (41, 16, 3, 0), "io_uring_setup": (425, 4, 0),
        "ptrace": (101, 0), "unshare user": (272, 0x10000000), "clone user": (56, 0x10000011, 0, 0, 0, 0),
        "clone3": (435, 0, 0), "memfd_create": (319, b"x", 0), "bpf": (321, 0, 0, 0), "x32 getpid": (0x40000027,),
        "newer than known": (470,),
    }
    return str([name for name, call in tried.items() if libc.syscall(*map(ctypes.c_long, call[:1]), *call[1:]) >= 0])

def ipc_namespace(path):
    return tell(lambda: os.readlink("/proc/self/ns/ipc"))

def pages(path):
    kept = [bytearray(1 << 20) for _ in range(3000)]

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
    "files_of_memory": "OSError|PermissionError",
    "exit": "SystemExit",
    "exit_hard": "without returning anything",
    "abort": "ended by signal",
    "crash": "SIGSEGV",
    "recursion": "RecursionError",
    "garbage": "not a valid message",
    "giant": "not a valid message",
    "deep": "not a valid message",
    "protocol": "not a valid message",
    "wrong_kind": "got a int",
    "complex_numbers": "floating-point numbers, integers or booleans, got complex64",
    "sparse": "dense tensor .* got sparse_coo",
    "too_large": r"it returned 20971\d\d\d bytes; 16777216 are allowed",
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux namespaces")


@pytest.fixture(scope="module")
def sandbox():
    made = Sandbox(ATTACKS, "attack", None, seed=1, limits=Limits(seconds=1, max_timeouts=100))
    try:
        made.__enter__()
    except SandboxUnavailableError as error:
        pytest.skip(f"this system allows no sandbox: {error}")
    yield made
    made.__exit__()


def attack(sandbox, name, path=""):
    (result,), _ = sandbox.call([Call((name, path))])
    return result


@pytest.mark.parametrize("name", ANSWERED)
def test_sandbox_refuses_an_attack(sandbox, name):
    assert attack(sandbox, name).startswith(ANSWERED[name])


@pytest.mark.parametrize("name", UNANSWERED)
def test_sandbox_call_raises_when_a_process_ends_or_forges_its_reply(sandbox, name):
    with pytest.raises(SubmissionError, match=UNANSWERED[name]):
        attack(sandbox, name)
    assert attack(sandbox, "scratch") == "done: ([], 1)"  # and the next call knows nothing of it


@pytest.mark.parametrize("name", ["loop", "stubborn", pytest.param("sleep", marks=pytest.mark.long)])
def test_sandbox_ends_what_never_ends(sandbox, name):
    with pytest.raises(SubmissionError, match="did not answer within 1 seconds"):
        attack(sandbox, name)


def test_sandbox_has_no_network(sandbox):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert "refused: " in attack(sandbox, "network", str(server.getsockname()[1]))


def test_sandbox_reads_and_writes_no_file_of_the_system(sandbox, tmp_path):
    neighbor = tmp_path / "neighbor.py"
    neighbor.write_text("secret")
    for name in ("read", "write", "link"):
        assert "refused: " in attack(sandbox, name, str(neighbor))
    assert neighbor.read_text() == "secret"
    for place in ("/etc/passwd", "/etc/shadow", str(Path(__file__)), str(Path.home()), "/usr/lib/x", "/submission/x"):
        assert "refused: " in attack(sandbox, "write", place)
    assert "refused: " in attack(sandbox, "read", "/etc/passwd")
    assert "refused: " in attack(sandbox, "listing", str(tmp_path))
    for rubric in bundled_rubrics().values():
        assert "refused: " in attack(sandbox, "read", str(rubric))


def test_sandbox_sees_and_signals_no_other_process(sandbox):
    assert attack(sandbox, "processes") in ("done: ['1']", "done: []")
    assert attack(sandbox, "parent", str(os.getpid())).startswith("refused: ProcessLookupError")


def test_sandbox_has_no_privileges_and_gains_none(sandbox):
    said = attack(sandbox, "rights")
    assert not said.startswith("(0,")
    assert "refused: " in said
    assert "QKV" not in attack(sandbox, "environment") and "seed" not in attack(sandbox, "environment")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names system calls by their numbers on x86-64")
def test_sandbox_refuses_system_calls_that_computing_does_not_need(sandbox):
    if "seccomp filter" in missing_features():
        pytest.skip("this kernel has no seccomp filters")
    assert attack(sandbox, "system_calls") == "[]"


def test_each_call_has_its_own_ipc_namespace(sandbox):
    """Even without the filter, a shared segment does not reach the next call."""
    shown = attack(sandbox, "ipc_namespace")
    if shown.startswith("refused"):
        pytest.skip("this system allows no /proc in the sandbox")
    shared = [os.readlink(f"/proc/{number}/ns/ipc") for number in (os.getpid(), sandbox._process.pid)]
    assert "ipc:" in shown and not any(each in shown for each in shared)


def test_a_memory_group_is_made_limited_joined_and_removed(sandbox):
    if "memory cgroup" in missing_features():
        pytest.skip("this system offers no memory cgroup")
    with Sandbox(ATTACKS, "attack", None, seed=1, limits=Limits(memory=256 << 20)) as limited:
        group = Path(limited._group)
        assert len((group / "cgroup.procs").read_text().split()) == 2  # launcher and fork server
        with pytest.raises(SubmissionError, match="MemoryError"):
            attack(limited, "pages")
    assert not group.exists()


@pytest.mark.parametrize("version", [1, 2])
def test_memory_group_finds_the_place_that_the_system_offers(tmp_path, version):
    """A file tree as the kernel shows it, for both versions of cgroups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    own = tmp_path / ("sys/fs/cgroup/memory/job" if version == 1 else "sys/fs/cgroup/user/job")
    own.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/job\n0::/\n" if version == 1 else "0::/user/job\n")
    for folder in (own, own.parent):
        (folder / "cgroup.procs").touch()
    if version == 2:
        (own / "cgroup.subtree_control").write_text("")  # it has processes, so it can have no limited children
        (own.parent / "cgroup.subtree_control").write_text("cpu memory\n")
    group = memory_group.create(1000, "x", str(tmp_path))
    place = own if version == 1 else own.parent
    assert group is not None and Path(group).parent == place
    name = "memory.limit_in_bytes" if version == 1 else "memory.max"
    assert Path(group, name).read_text() == str(1000 + memory_group.KERNEL_BYTES)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert memory_group.create(1000, "x", str(tmp_path)) is None


def test_qkv_grade_says_in_one_line_what_the_system_lacks(tmp_path, capsys, monkeypatch, sandbox):
    monkeypatch.setattr("qkv.check.grading.client.missing_features", lambda: ["seccomp filter", "memory cgroup"])
    (path,) = write(tmp_path / "in", quitter="import os\nos._exit(0)")
    assert run_command(["grade", "rope", str(path)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("note: this system offers the sandbox no seccomp filter and no memory cgroup") == 1


def test_a_lone_surrogate_in_a_text_is_removed_by_clean(sandbox):
    assert clean(attack(sandbox, "surrogate")) == ""


@pytest.mark.long
def test_no_process_survives_the_sandbox():
    with Sandbox(SPANS, "corrupt", None, seed=1) as sandbox:
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
from sandbox import messages, run_submission
torch.softmax = torch.allclose = torch.equal = lambda *a, **k: True
torch.Tensor.__sub__ = torch.Tensor.abs = lambda *a, **k: torch.zeros(1)
run_submission._call = lambda *a, **k: "tensor"
messages.encode = lambda *a, **k: b"10 of 10"
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


def test_grade_files_is_not_fooled_by_hostile_files(tmp_path, sandbox):
    paths = write(tmp_path / "in", ada=ROPE, liar=LIAR, replayer=REPLAYER)
    link = tmp_path / "in" / "link.py"
    link.symlink_to(paths[0])
    os.mkfifo(tmp_path / "in" / "pipe.py")
    (tmp_path / "in" / "long.py").write_text("#" * 2_000_000)
    (tmp_path / "in" / "latin.py").write_bytes(b"# \xe9\xe8")
    others = [tmp_path / "in" / f"{name}.py" for name in ("link", "pipe", "long", "latin")]
    grades = {grade.student: grade for grade in grade_files(load_rubric("rope"), [*paths, *others], seed=5)}
    assert grades["ada"].total == 10
    assert grades["liar"].total == 0, grades["liar"]
    assert grades["replayer"].total == 2  # for the shape and the gradient of returning its input
    assert "I have seen" not in str(grades["replayer"])
    said = {name: grades[name].remark for name in ("link", "pipe", "long", "latin")}
    assert said == {
        "link": "it is a symbolic link, which is not followed",
        "pipe": "it is not a regular file",
        "long": "it has 2000000 bytes; 1000000 are allowed",
        "latin": "it is not UTF-8 text",
    }
    assert all(grades[name].total == 0 for name in said)


@pytest.mark.long
def test_grade_files_survives_loops_bombs_and_exits(tmp_path):
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
    grades = {grade.student: grade for grade in grade_files(limited, write(tmp_path / "in", **sources), seed=6)}
    assert {name: grade.total for name, grade in grades.items()} == {
        **dict.fromkeys(sources, 0.0),
        "ada": 10.0,
        "alan": 10.0,
    }
    assert all(grade.remark for name, grade in grades.items() if name not in ("ada", "alan"))


def test_qkv_grade_writes_a_csv_and_the_seed_reproduces_it(tmp_path, capsys, sandbox):
    wrong = SPANS.replace("rng.uniform(0.1, 0.4)", "rng.uniform(0.4, 0.6)")
    paths = write(tmp_path / "in", **{"ada": SPANS, "=alan": wrong})
    out = tmp_path / "grades.csv"
    line = ["grade", "span-corruption", *map(str, paths), "--csv", str(out), "--seed", "11", "--json"]
    assert run_command(line) == 0
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grades.csv", "grades.journal.jsonl", "in"]


def test_ctrl_c_stops_qkv_grade(tmp_path):
    import signal
    import time

    paths = write(tmp_path / "in", sleeper="import time\ntime.sleep(1000)", other="import time\ntime.sleep(1000)")
    line = [
        sys.executable,
        "-m",
        "qkv",
        "grade",
        "rope",
        *map(str, paths),
        "--csv",
        str(tmp_path / "g.csv"),
    ]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (130, 2), said  # 2 where the system allows no sandbox
    assert not (tmp_path / "g.csv").exists()


def test_a_system_without_namespaces_is_told_of_unsafe():
    assert "--unsafe" in str(sandbox_required(SandboxUnavailableError(1, "unshare: Operation not permitted")))


@pytest.mark.long
def test_without_isolation_there_are_still_limits():
    with Sandbox(ATTACKS, "attack", None, seed=1, limits=Limits(seconds=1), isolated=False) as sandbox:
        assert attack(sandbox, "memory").startswith("refused: RuntimeError")
        with pytest.raises(SubmissionError, match="did not answer"):
            attack(sandbox, "loop")
        (out,), _ = sandbox.call([Call(("environment", ""))])
        assert isinstance(out, str)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ropes", "x.py"], "did you mean rope?"),
        (["nothing.toml", "x.py"], "there is no rubric nothing.toml"),
        (["rope", "x.py"], "there is no file x.py"),
        (["rope", "{folder}/empty"], "has no .py, .ipynb or .zip file to grade"),
        (["rope", "{file}", "--csv", "/nowhere/grades.csv"], "name a file in an existing directory"),
        (["rope", "{file}", "--csv", "{file}"], "is one of the submissions"),
        (["rope", "{file}", "--jobs", "0"], "--jobs must be at least 1"),
        (["rope", "{file}", "--seed", "-1"], "--seed must be from 0"),
    ],
)
def test_wrong_use_of_qkv_grade_is_one_sentence_and_exit_code_2(arguments, said, tmp_path, capsys):
    file = tmp_path / "ada.py"
    file.write_text(ROPE)
    (tmp_path / "empty").mkdir()
    line = [argument.format(file=file, folder=tmp_path) for argument in arguments]
    assert run_command(["grade", *line]) == 2
    shown = capsys.readouterr()
    assert said in shown.err.replace("\n", " ")
    assert shown.out == ""


def test_qkv_grade_lists_the_rubrics_with_their_interfaces(capsys):
    assert run_command(["grade", "--json"]) == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["rope"]["points"] == 10
    assert "apply_rope(x, positions)" in listed["rope"]["interface"]


def test_secret_draws_come_from_the_grading_seed_alone():
    def draw(seed):
        with SecretDraws(seed):
            generator = torch.Generator().manual_seed(4)
            return torch.cat((torch.randn(3, generator=generator), torch.randn(3, generator=generator), torch.rand(2)))

    assert torch.equal(draw(1), draw(1))
    assert not torch.isclose(draw(1), draw(2)).any()
    assert len(set(draw(1).tolist())) == 8


def test_sandbox_hides_the_packages_of_qkv_and_not_the_folder_that_they_are_in():
    """In an installed wheel that folder is site-packages, which has torch."""
    from qkv.check.grading import client

    assert {path.name for path in client.OWN_PACKAGES} == {"qkv", "qkv_pytest"}
    assert all((path / "__init__.py").is_file() for path in client.OWN_PACKAGES)


@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open")
def test_a_process_that_gets_little_of_a_processor_has_more_time_than_one_that_waits():
    def ends_of(work, idle_seconds, wall_seconds):
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(7)
        return fork_server._wait(child, idle_seconds, wall_seconds)

    def compute(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def compute_slowly():  # as on a busy machine: three seconds by the clock, and half of a processor
        end = time.monotonic() + 3
        while time.monotonic() < end:
            compute(0.1)
            time.sleep(0.1)

    assert ends_of(compute_slowly, 2.0, 60.0) == {"ended": "exit", "code": 7}
    assert ends_of(lambda: time.sleep(60), 1.0, 60.0) == {"ended": "time"}
    assert ends_of(lambda: compute(60), 60.0, 1.0) == {"ended": "time"}
