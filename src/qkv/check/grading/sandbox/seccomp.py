"""A seccomp filter for a submission's process: the kernel refuses system calls that computing does not need.

Namespaces and limits come first (`namespaces`). The filter closes what they leave open, and shrinks the part of the
kernel that a submission can reach. It is a classic BPF program, installed with prctl; no library is needed.
"""

import ctypes
import errno
import os
import struct

PR_GET_SECCOMP, PR_SET_SECCOMP, MODE_FILTER = 21, 22, 2
KILL, ALLOW, ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of 32-bit words
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data (low word of the argument)
X32_BIT = 0x40000000  # the second set of numbers of x86-64
LAST_KNOWN = 456  # later system calls are refused as if the kernel did not have them

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_…
NAMESPACE_FLAGS = 0x7E020080  # CLONE_NEW… of every kind
CLONE, CLONE3 = {"x86_64": 56, "aarch64": 220}, 435

# (x86-64, aarch64)
REFUSED = {
    # SysV and POSIX message queues, semaphores and shared memory outlive a process and escape its memory limit
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    # so do keys, and files in memory
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # sockets of every family: a network namespace does not contain vsock
    "socket": (41, 198), "socketpair": (53, 199),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    # rarely used parts of the kernel
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "quotactl": (179, 60), "acct": (163, 89), "swapon": (167, 224), "syslog": (103, 116), "personality": (135, 92),
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def is_available() -> bool:
    """Whether this kernel takes filters, for a processor whose numbers are known here."""
    if os.uname().machine not in ARCHITECTURES or _libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return False
    return _libc.prctl(PR_SET_SECCOMP, MODE_FILTER, None, 0, 0) < 0 and ctypes.get_errno() == errno.EFAULT


def refuse_system_calls() -> None:
    """Install the filter in this process, for good. It needs no_new_privs. A refused call fails with EPERM."""
    program = _program(os.uname().machine)
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))  # struct sock_fprog
    if _libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.create_string_buffer(header, len(header)), 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _program(machine: str) -> bytes:
    """The filter as BPF instructions of eight bytes: operation, jump if true, jump if false, operand."""
    column = list(ARCHITECTURES).index(machine)

    def refuse(code: int) -> list[bytes]:
        return [_instruction(RETURN, ERRNO | code)]

    lines = [
        _instruction(LOAD, ARCHITECTURE),
        _instruction(JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(RETURN, KILL),  # 32-bit calls have other numbers
        _instruction(LOAD, NUMBER),
        _instruction(JUMP_AT_LEAST, X32_BIT, 0, 1),
        *refuse(errno.ENOSYS),
        _instruction(JUMP_AT_LEAST, LAST_KNOWN + 1, 0, 1),
        *refuse(errno.ENOSYS),
        _instruction(JUMP_EQUAL, CLONE3, 0, 1),  # its flags are in memory, which no filter sees; libc then uses clone
        *refuse(errno.ENOSYS),
    ]
    for numbers in REFUSED.values():
        lines += [_instruction(JUMP_EQUAL, numbers[column], 0, 1), *refuse(errno.EPERM)]
    lines += [
        _instruction(JUMP_EQUAL, CLONE[machine], 0, 3),
        _instruction(LOAD, FIRST_ARGUMENT),
        _instruction(JUMP_ANY_BIT, NAMESPACE_FLAGS, 0, 1),
        *refuse(errno.EPERM),
        _instruction(RETURN, ALLOW),
    ]
    return b"".join(lines)


def _instruction(operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, operand)
