"""The kernel's refusals as sentences: what happened, where, what to do."""

from __future__ import annotations

import errno
import os

from p3_shaper.describe import describe_message
from p3_shaper.tcmessage import Request


class TcError(Exception):
    """The kernel refused: a sentence, and the kernel's `errno`."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.errno = number


_LONGEST_NAME = 15
_ADVICE = {
    errno.EPERM: "this needs CAP_NET_ADMIN: run it as root, or grant that capability",
    errno.EACCES: "this needs CAP_NET_ADMIN: run it as root, or grant that capability",
    errno.ENODEV: "the interface is gone: name one that `ip link` shows",
    errno.EEXIST: "it is there already: another program changed it meanwhile, so try again",
    errno.EBUSY: "it is in use by a filter or a class of another program: remove that first",
    errno.ENOENT: "what it needs is not there: another program changed it meanwhile, so try again",
}


def refused(action: str, error: OSError) -> TcError:
    """The kernel refused `action` ("add qdisc htb …"); its own words are in `error`, if any."""
    number = error.errno or 0
    reason = error.strerror or os.strerror(number)
    advice = _ADVICE.get(number)
    return TcError(f"cannot {action}: {reason}{f' ({advice})' if advice else ''}", number)


def refused_request(request: Request, error: OSError) -> TcError:
    """The kernel refused `request`."""
    return refused(f"{request.verb.value} {describe_message(request.message)}", error)


def no_namespace(namespace: str | None, error: OSError) -> TcError:
    """The network namespace could not be entered."""
    number = error.errno or 0
    if number == errno.ENOENT:
        text = f"there is no network namespace {namespace!r}: name one that `ip netns` shows"
    elif number in (errno.EPERM, errno.EACCES):
        text = f"entering the network namespace {namespace!r} needs CAP_SYS_ADMIN: run it as root"
    else:
        text = f"cannot open netlink in the network namespace {namespace!r}: {error.strerror}"
    return TcError(text, number)


def no_link(name: str, namespace: str | None, error: OSError) -> TcError:
    """The interface `name` could not be read."""
    if error.errno != errno.ENODEV and len(os.fsencode(name)) <= _LONGEST_NAME:
        return refused(f"read interface {name}", error)
    where = f" in the network namespace {namespace}" if namespace else ""
    return TcError(
        f"there is no interface {name!r}{where}: name one that `ip link` shows", errno.ENODEV
    )
