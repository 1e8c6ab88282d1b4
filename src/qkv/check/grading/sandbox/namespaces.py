"""Sandbox isolation with Linux namespaces and resource limits, using the standard library only.

A submission gets its own network, processes and files: a root of read-only libraries with nothing else in it, one
small scratch directory, and no other process to see or signal. Everything is done with system calls through ctypes, as
root or as an ordinary user where the system lets users create namespaces.
"""

import ctypes
import os
import random
import resource
import sys
import sysconfig
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE, MS_BIND = 2, 4, 8, 0x4000, 1 << 18, 4096
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_DUMPABLE = 1, 24, 38, 4
SYS_MOUNT_SETATTR, SYS_PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}
AT_RECURSIVE, READ_ONLY, NO_SUID, NO_DEVICES = 0x8000, 1, 2, 4
SCRATCH = "/scratch"
SCRATCH_BYTES = 32_000_000

_libc = ctypes.CDLL(None, use_errno=True)


class NotAllowedError(OSError):
    """The system refused a step of building the sandbox."""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends, for whatever reason."""
    _libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)


def unshare_namespaces() -> bool:
    """Enter new mount, process (for children), network, IPC and host-name namespaces.

    Returns True if root made them. An ordinary user makes a user namespace, too.
    """
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if os.geteuid() == 0 and _libc.unshare(flags) == 0:
        return True
    user, group = os.geteuid(), os.getegid()
    _check("unshare (user namespaces)", _libc.unshare(flags | CLONE_NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(text)
    return False


def build_root(base: str, hidden: list[str]) -> None:
    """Build a root in memory with read-only libraries and a few devices; `hidden` directories are empty in it."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    libraries = _library_directories()
    for folder in libraries:
        _bind(folder, base + folder)
    for path in sorted(hidden):  # a folder comes before what is in it, which is hidden with it
        if any(_is_under(path, folder) for folder in libraries) and os.path.isdir(base + path):
            _mount("tmpfs", base + path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=755")
    for device in ("null", "zero", "random", "urandom"):
        _bind(f"/dev/{device}", f"{base}/dev/{device}", devices=True)
    for name in ("/etc/ld.so.cache", "/etc/localtime"):
        if os.path.exists(name):
            _bind(name, base + name)
    for name in ("proc", "scratch", "submission", "old", "tmp"):
        os.makedirs(f"{base}/{name}", exist_ok=True)
    for name in ("lib", "lib64", "lib32"):  # on merged systems these are links into /usr
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{base}/{name}")
    number = SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise NotAllowedError(f"pivot_root is not known for {os.uname().machine}")
    _check("pivot_root", _libc.syscall(number, base.encode(), f"{base}/old".encode()))
    os.chdir("/")
    _check("umount", _libc.umount2(b"/old", MNT_DETACH))
    os.rmdir("/old")
    _make_read_only("/", READ_ONLY | NO_SUID, recursive=False)


def unshare_processes() -> None:
    """Put children from now on into their own process namespace, with their own mounts and IPC objects."""
    _check("unshare (processes)", _libc.unshare(CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC))


def mount_scratch(user: int) -> None:
    """Mount an empty scratch directory in memory, and a /proc of this process namespace only."""
    options = f"size={SCRATCH_BYTES},nr_inodes=1000,mode=700,uid={user},gid={user}"
    _mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except NotAllowedError:  # a container that hides parts of /proc allows no new one: /proc stays empty
        _mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=555")
    else:
        Path("/proc/self/oom_score_adj").write_text("1000")  # of the sandbox, memory runs out for the submission first
    os.chdir(SCRATCH)


def choose_user_id() -> int:
    """Pick a user id that nobody else has, among those this system can name (call it while /proc is still there)."""
    count = int(Path("/proc/self/uid_map").read_text().split()[2])
    return random.SystemRandom().randrange(1 << 30, (1 << 31) - 1) if count > 1 << 31 else max(1, count - 2)


def drop_privileges(user: int, *, rooted: bool) -> None:
    """Become `user`, unknown to its own user namespace, with no capabilities and no way to gain any.

    An unknown user can create no further namespaces. It is alone in its own, so limits count only its processes.
    """
    if rooted:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    status = _libc.unshare(CLONE_NEWUSER)
    if not rooted:
        _check("unshare (user)", status)  # as root a refusal is fine: the submission would be refused it too
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check("capset", _libc.capset(header, nothing))
    _check("no_new_privs", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def set_limits(seconds: int, memory: int, file_size: int, *, single_process: bool) -> None:
    """Limit processor time, memory beyond what is in use now, file size and open files.

    single_process: forbid any further process or thread.
    """
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _has_statm() else 4 << 30
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: used + memory,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 100,
    }
    if single_process:
        limits[resource.RLIMIT_NPROC] = 1
    for name, most in limits.items():
        resource.setrlimit(name, (most, most))


def _has_statm() -> bool:
    return os.path.exists("/proc/self/statm")


def _library_directories() -> list[str]:
    """The directories that Python, torch and the dynamic loader read from, outermost only."""
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {os.path.realpath(path) for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")}
    for name in ("torch", "numpy", "safetensors"):
        if (module := sys.modules.get(name)) is not None and module.__file__:
            found.add(os.path.dirname(os.path.dirname(os.path.realpath(module.__file__))))
    existing = sorted(path for path in found if os.path.isdir(path))
    return [path for path in existing if not any(path != other and _is_under(path, other) for other in existing)]


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _bind(source: str, target: str, *, devices: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, MS_BIND | MS_REC)
    _make_read_only(target, READ_ONLY | NO_SUID | (0 if devices else NO_DEVICES), recursive=True)


def _make_read_only(path: str, flags: int, *, recursive: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    status = _libc.syscall(
        SYS_MOUNT_SETATTR, -100, path.encode(), AT_RECURSIVE if recursive else 0, ctypes.byref(attributes), 32
    )
    _check(f"mount_setattr {path}", status)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    status = _libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode())
    _check(f"mount {target}", status)


def _check(name: str, status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise NotAllowedError(number, f"{name}: {os.strerror(number)}")
