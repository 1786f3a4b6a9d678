"""nftables in this process, by libnftables(3): what it makes `owner` ends with the process."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from p3_agent.errors import AgentError

_NETLINK_NETFILTER = 12


class NftError(Exception):
    """nftables refused; the message is its own words."""


class Nft:
    """One netlink socket to nftables; made by `open_nft`."""

    def __init__(self, library: ctypes.CDLL, context: ctypes.c_void_p) -> None:
        self._library = library
        self._context = context

    def run(self, commands: str) -> None:
        """Run nft(8) commands, all or none; NftError when they are refused."""
        code = self._library.nft_run_cmd_from_buffer(self._context, commands.encode())
        said: bytes = self._library.nft_ctx_get_error_buffer(self._context)
        if code != 0:
            first = said.decode(errors="replace").partition("\n")[0]
            raise NftError(first.removeprefix("netlink: ").removeprefix("Error: "))

    def has(self, table: str) -> bool:
        """Whether there is a table `inet TABLE`, whosever it is."""
        try:
            self.run(f"list table inet {table}")
        except NftError:
            return False
        return True


@contextmanager
def open_nft() -> Iterator[Nft]:
    """nftables of this network namespace; AgentError when the machine has none.

    At the end the kernel removes every table that was made with `flags owner`.
    """
    library = _load()
    try:  # libnftables ends the process where this fails
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER).close()
    except OSError as error:
        raise AgentError(
            f"this kernel has no nftables ({error.strerror}): "
            "use one with CONFIG_NF_TABLES, as Debian's own have"
        ) from error
    context = ctypes.c_void_p(library.nft_ctx_new(0))
    try:
        library.nft_ctx_buffer_error(context)
        library.nft_ctx_buffer_output(context)
        yield Nft(library, context)
    finally:
        library.nft_ctx_free(context)


def _load() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libnftables.so.1")
    except OSError as error:
        raise AgentError(
            f"no libnftables here ({error}): install nftables (apt install nftables)"
        ) from error
    context, text = ctypes.c_void_p, ctypes.c_char_p
    library.nft_ctx_new.argtypes = [ctypes.c_uint32]
    library.nft_ctx_new.restype = context
    library.nft_run_cmd_from_buffer.argtypes = [context, text]
    library.nft_ctx_get_error_buffer.argtypes = [context]
    library.nft_ctx_get_error_buffer.restype = text
    for name in ("nft_ctx_buffer_error", "nft_ctx_buffer_output"):
        getattr(library, name).argtypes = [context]
    library.nft_ctx_free.argtypes = [context]
    library.nft_ctx_free.restype = None
    return library
