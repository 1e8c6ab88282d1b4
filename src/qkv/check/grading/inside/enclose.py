"""The walls around a submission, from Linux' namespaces and limits: standard library only.

Network, processes and files are its own: a root of read-only libraries in which nothing else exists, one small scratch
folder, no other process to see or signal. Everything is done with system calls through ctypes, as root or as a plain
user where the system lets users make namespaces.
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
    """The system does not let us build one of the walls."""


def die_with_parent() -> None:
    """Be killed when the parent ends, whatever it ends of."""
    _libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)


def leave_the_system() -> bool:
    """New namespaces for users if need be, mounts, processes (of the children), network; whether root made them."""
    spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if os.geteuid() == 0 and _libc.unshare(spaces) == 0:
        return True
    user, group = os.geteuid(), os.getegid()
    _call("unshare (user namespaces)", _libc.unshare(spaces | CLONE_NEWUSER))
    for name, words in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        Path("/proc/self", name).write_text(words)
    return False


def build_root(base: str, hidden: list[str]) -> None:
    """A root in memory: libraries to read, a few devices, nothing else; what is hidden is empty in it."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
    libraries = _libraries()
    for folder in libraries:
        _bind(folder, base + folder)
    for path in hidden:
        if any(_is_under(path, folder) for folder in libraries) and os.path.isdir(path):
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
    _call("pivot_root", _libc.syscall(number, base.encode(), f"{base}/old".encode()))
    os.chdir("/")
    _call("umount", _libc.umount2(b"/old", MNT_DETACH))
    os.rmdir("/old")
    _read_only("/", READ_ONLY | NO_SUID, deep=False)


def own_processes() -> None:
    """Children from now on live in a process namespace of their own, with mounts of their own."""
    _call("unshare (processes)", _libc.unshare(CLONE_NEWPID | CLONE_NEWNS))


def own_scratch(user: int) -> None:
    """An empty scratch folder in memory, and a view of the processes of this namespace only."""
    options = f"size={SCRATCH_BYTES},nr_inodes=1000,mode=700,uid={user},gid={user}"
    _mount("tmpfs", SCRATCH, "tmpfs", MS_NOSUID | MS_NODEV, options)
    try:
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except NotAllowedError:  # a container that hides parts of /proc allows no new one: then there is none
        _mount("tmpfs", "/proc", "tmpfs", MS_NOSUID | MS_NODEV, "size=4k,mode=555")
    os.chdir(SCRATCH)


def stranger() -> int:
    """A user whom nobody else is, among those that this system can name (asked while /proc is still there)."""
    count = int(Path("/proc/self/uid_map").read_text().split()[2])
    return random.SystemRandom().randrange(1 << 30, (1 << 31) - 1) if count > 1 << 31 else max(1, count - 2)


def become(user: int, *, rooted: bool) -> None:
    """Lose every right: a stranger, whom a namespace of its own does not know, without capabilities and none to gain.

    An unknown user can make no further namespaces, and in its own it is alone: limits count its processes only.
    """
    if rooted:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    known = _libc.unshare(CLONE_NEWUSER)
    if not rooted:
        _call("unshare (user)", known)  # as root a refusal is welcome: the submission would be refused it too
    for capability in range(64):
        _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _call("capset", _libc.capset(header, nothing))
    _call("no_new_privs", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def limit(seconds: int, memory: int, file_size: int, *, alone: bool) -> None:
    """Processor time, memory above what is in use now, size of files, open files; alone: no other process or thread."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _has_statm() else 4 << 30
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: used + memory,
        resource.RLIMIT_FSIZE: file_size,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 1 << 16,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if alone:
        limits[resource.RLIMIT_NPROC] = 1
    for name, most in limits.items():
        resource.setrlimit(name, (most, most))


def _has_statm() -> bool:
    return os.path.exists("/proc/self/statm")


def _libraries() -> list[str]:
    """The folders that Python, torch and the loader read from, outermost only."""
    paths = sysconfig.get_paths()
    found = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {os.path.realpath(path) for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")}
    for name in ("torch", "numpy", "safetensors"):
        if (module := sys.modules.get(name)) is not None and module.__file__:
            found.add(os.path.dirname(os.path.dirname(os.path.realpath(module.__file__))))
    there = sorted(path for path in found if os.path.isdir(path))
    return [path for path in there if not any(path != other and _is_under(path, other) for other in there)]


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _bind(source: str, target: str, *, devices: bool = False) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, MS_BIND | MS_REC)
    _read_only(target, READ_ONLY | NO_SUID | (0 if devices else NO_DEVICES), deep=True)


def _read_only(path: str, flags: int, *, deep: bool) -> None:
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    done = _libc.syscall(
        SYS_MOUNT_SETATTR, -100, path.encode(), AT_RECURSIVE if deep else 0, ctypes.byref(attributes), 32
    )
    _call(f"mount_setattr {path}", done)


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    done = _libc.mount(source.encode(), target.encode(), kind.encode() if kind else None, flags, options.encode())
    _call(f"mount {target}", done)


def _call(name: str, done: int) -> None:
    if done != 0:
        number = ctypes.get_errno()
        raise NotAllowedError(number, f"{name}: {os.strerror(number)}")
