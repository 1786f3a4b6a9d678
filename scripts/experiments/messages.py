"""What a trainer tells its launcher: one JSON object a line on standard output."""

from __future__ import annotations

import sys

import msgspec


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The trainer runs; `pid` is its process."""

    rank: int
    pid: int


class Iterated(msgspec.Struct, frozen=True, tag="iterated"):
    """Rank 0 has done iteration number `iteration` (from 0); `loss` is of its own batch."""

    iteration: int
    loss: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The trainer ends with an error; `message` is the error's own sentence."""

    rank: int
    message: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A rank's whole training.

    `starts` are the times at which iterations began, and `ended` when the last update was
    applied, in seconds of one clock; `losses` one an iteration, of the rank's own batches;
    `compute_s` an iteration's seconds without communication; `sent_bytes` what the node's device
    sent, headers and all, and `payload_bytes` what the engine handed over (0 if it does not
    say); `cpu_s` processor seconds of the training; `digest` is the SHA-256 of the parameters;
    `accuracies` are those on the way, where they were asked for.
    """

    rank: int
    starts: list[float]
    ended: float
    losses: list[float]
    compute_s: float
    accuracy: float | None
    digest: str
    parameters: int
    images: int
    sent_bytes: int
    payload_bytes: int
    cpu_s: float
    accuracies: list[float] = []


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """One round of a transport benchmark: `payload_bytes` sent by each node in `seconds`.

    `cpu_s` is what both nodes' processors spent on it, user and kernel.
    """

    transport: str
    payload_bytes: int
    seconds: float
    cpu_s: float


class Held(msgspec.Struct, frozen=True, tag="held"):
    """What a way to train has needed at most on any node, in bytes.

    `beside_bytes` is all but the model's: parameters and gradients, `model_bytes` in all, once.
    """

    system: str
    model_bytes: int
    beside_bytes: int


class Waited(msgspec.Struct, frozen=True, tag="waited"):
    """The longest that rank 0's training thread waited for the GIL in one round, in seconds."""

    system: str
    longest_s: float


Event = Started | Iterated | Failed | Finished | Measured | Held | Waited
_decoder = msgspec.json.Decoder(Event)


def tell(event: Event) -> None:
    """Send `event` to the launcher."""
    line = msgspec.json.encode(event) + b"\n"
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def heard(line: str) -> Event | None:
    """The event in a line of output; None when the line is something else."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
