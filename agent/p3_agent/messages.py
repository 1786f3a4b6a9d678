"""What is said over the control socket: one JSON object a SOCK_SEQPACKET message, tagged `type`.

Pure; standard library and msgspec only, because the training side imports it through `client`.
A connection is a row of requests, each answered by one reply before the next is read.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec

PROTOCOL = 1
DEFAULT_SOCKET = "/run/p3-agent/control.sock"
SOCKET_VARIABLE = "P3_AGENT_SOCKET"

# Both stay far under the kernel's default send buffer (208 KiB), so that one message always fits.
MAX_REQUEST = 4096
MAX_REPLY = 65536

Count = Annotated[int, msgspec.Meta(ge=0)]
RateText = Annotated[str, msgspec.Meta(min_length=1, max_length=32)]
MAX_JOBS = 128  # connected processes that train; all of them fit into a status
MAX_JOBS_OF_A_USER = 64  # other than root
JobName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._:/-]{0,47}\Z")]


class ControlError(Exception):
    """The agent refused a request, or what answers is no agent. `code` is for programs.

    Codes of the agent: `too-large`, `malformed`, `protocol`, `forbidden`, `busy`, `failed`.
    Codes of the client: `unreachable` (no permission, timeout, cut off), `bad-reply`.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{reason} [{code}]")
        self.code = code
        self.reason = reason


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client may ask. Unknown fields are refused, or a typo would pass for a no-op."""


class Hello(Request, frozen=True, tag="hello"):
    """Who is there? Refused with `protocol` unless the agent speaks the client's protocol."""

    protocol: Count = PROTOCOL


class GetBands(Request, frozen=True, tag="bands"):
    """The band table in force."""


class GetStatus(Request, frozen=True, tag="status"):
    """The tree and its counters."""


class Reconcile(Request, frozen=True, tag="reconcile"):
    """Compare the interface with the wanted tree now and mend it. Root and the agent's group."""


class SetRate(Request, frozen=True, tag="set-rate"):
    """Shape at another rate from now on, until a reload or the end. Root and the agent's group."""

    rate: RateText


class Confirm(Request, frozen=True, tag="confirm"):
    """Keep the bands of an agent that was started with --confirm. Root and the agent's group."""


class RegisterJob(Request, frozen=True, tag="job"):
    """The client trains: count it as a process of this job for as long as it stays connected."""

    name: JobName


AnyWrite = Reconcile | SetRate | Confirm
AnyRequest = Hello | GetBands | GetStatus | RegisterJob | AnyWrite
WRITES = (Reconcile, SetRate, Confirm)


class Reply(msgspec.Struct, frozen=True):
    """What an agent answers; clients ignore fields that a newer agent adds."""


class Welcome(Reply, frozen=True, tag="welcome"):
    """Answers Hello."""

    protocol: int
    version: str
    pid: int
    device: str


class Bands(Reply, frozen=True, tag="bands"):
    """Answers GetBands: the arguments of `p3_shaper.bands.BandTable`."""

    dscps: tuple[int, ...]
    unmarked_share: float
    force: bool


class ClassStatus(msgspec.Struct, frozen=True):
    """One class of the tree: `band` is None for the unmarked traffic's. Rates in bits a second.

    Counters are the kernel's since the class was made: `bytes` and `packets` sent, packets
    dropped, and bytes and packets that wait now.
    """

    band: int | None
    dscp: int | None
    classid: str
    guarantee: int | None
    bytes: int
    packets: int
    drops: int
    backlog_bytes: int
    backlog_packets: int
    overlimits: int


class Drift(msgspec.Struct, frozen=True):
    """What others did to the tree: repairs made, and the last one's steps."""

    repairs: int
    last: tuple[str, ...]


class JobStatus(msgspec.Struct, frozen=True):
    """A process that trains, as the kernel knows it: `pid` is 0 in a pid namespace out of sight."""

    name: str
    pid: int
    uid: int


class Status(Reply, frozen=True, tag="status"):
    """Answers GetStatus. `state` is `ok`, or what is wrong in a sentence. `rate` bits a second.

    `unconfirmed_s`: seconds until all goes back unless it is confirmed; None if it is, or need not.
    """

    version: str
    pid: int
    device: str
    index: int
    mode: str
    reason: str
    rate: int | None
    state: str
    classes: tuple[ClassStatus, ...]
    tree: tuple[str, ...]
    drift: Drift
    reconciliations: int
    unconfirmed_s: float | None = None
    jobs: tuple[JobStatus, ...] = ()


class Done(Reply, frozen=True, tag="done"):
    """Answers a write: the steps that were taken, none if nothing was to be done.

    A job's registration is answered so, too, without steps.
    """

    steps: tuple[str, ...]


class Refusal(Reply, frozen=True, tag="error"):
    """The request was not carried out."""

    code: str
    reason: str


AnyReply = Welcome | Bands | Status | Done | Refusal

_encoder = msgspec.json.Encoder()
_requests = msgspec.json.Decoder(AnyRequest)
_replies = msgspec.json.Decoder(AnyReply)


def encode(message: Request | Reply) -> bytes:
    """One message's bytes."""
    return _encoder.encode(message)


def decode_request(data: bytes) -> AnyRequest:
    """A request from at most MAX_REQUEST + 1 received bytes.

    Raises ControlError `too-large` or `malformed`.
    """
    if len(data) > MAX_REQUEST:
        raise ControlError("too-large", f"a request may have at most {MAX_REQUEST} bytes")
    try:
        return _requests.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ControlError("malformed", f"not a request this agent knows: {error}") from error


def decode_reply(data: bytes) -> AnyReply:
    """A reply from at most MAX_REPLY + 1 received bytes; ControlError `bad-reply`."""
    if len(data) > MAX_REPLY:
        raise ControlError("bad-reply", f"the agent's reply has more than {MAX_REPLY} bytes")
    try:
        return _replies.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ControlError("bad-reply", f"the agent's reply is not understood: {error}") from error


def socket_path(given: str | os.PathLike[str] | None = None) -> str:
    """Where an agent listens: what was given, else $P3_AGENT_SOCKET, else the default."""
    if given is not None:
        return os.fspath(given)
    return os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
