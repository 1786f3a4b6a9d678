"""The systems compared, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class System:
    """One way to train: `key` names it in JSON, `title` in tables.

    `engine` is None for DDP. `agents`: p3-agent runs on every node, so the kernel keeps bands
    apart. `port_buffer` is what a switch port holds, in bytes; None leaves it to the user.
    """

    key: str
    title: str
    engine: Literal["groups", "ps"] | None = None
    agents: bool = False
    port_buffer: int | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the training program is told."""
        if self.engine is None:
            return ("--system", "ddp")
        return ("--system", "p3", "--engine", self.engine)


DDP = System("ddp", "PyTorch DDP, gloo")

DEMO = (
    DDP,
    System("p3_without_agent", "P3, no agents", "groups"),
    System("p3", "P3 with agents", "groups", agents=True),
)

SHALLOW_PORT = 256_000
DEEP_PORT = 4_000_000

EMULATED = (
    System("ddp", "PyTorch DDP, gloo", port_buffer=SHALLOW_PORT),
    System("groups_without_agent", "groups, no bands", "groups", port_buffer=SHALLOW_PORT),
    System("groups", "groups", "groups", agents=True, port_buffer=SHALLOW_PORT),
    System("ps_deep", "ps, 4 MB ports", "ps", agents=True, port_buffer=DEEP_PORT),
    System("ps", "ps, 256 KB ports", "ps", agents=True, port_buffer=SHALLOW_PORT),
)
