"""eBPF programs that see an interface's packets before its qdisc: bpf(2), BPF_PROG_QUERY."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

CALLS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_QUERY = 16
_TCX_EGRESS = 47


class _Query(ctypes.Structure):
    """What BPF_PROG_QUERY takes of union bpf_attr (linux/bpf.h); without room for ids it counts."""

    _fields_ = (
        ("target", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("query_flags", ctypes.c_uint32),
        ("attach_flags", ctypes.c_uint32),
        ("ids", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("more", ctypes.c_uint64 * 4),
    )


def tcx_egress(index: int, unseen: list[str]) -> int:
    """How many programs tcx runs on what leaves an interface; 0 where the kernel has no tcx (6.6).

    What may not be looked at is added to `unseen`.
    """
    call = CALLS.get(platform.machine())
    if call is None:
        unseen.append(f"programs of tcx: bpf(2) has no number here for {platform.machine()}")
        return 0
    query = _Query(target=index, attach_type=_TCX_EGRESS)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(call, _PROG_QUERY, ctypes.byref(query), ctypes.sizeof(query)) == 0:
        return int(query.count)
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.E2BIG):
        unseen.append(f"programs of tcx: {os.strerror(code)}")
    return 0
