"""What stops an agent."""

from __future__ import annotations

from p3_shaper.errors import TcError
from p3_shaper.plan import PlanError
from p3_shaper.replay import ReplayError
from p3_shaper.snapshot import SnapshotError
from p3_shaper.tree import TreeError


class AgentError(Exception):
    """The agent cannot do what it was asked.

    The message is one sentence for the operator: what happened, where, and what to do.
    """


class UsageError(AgentError):
    """It was asked wrongly, on the command line or in the settings; exit status 2."""


SENTENCES = (AgentError, TcError, PlanError, ReplayError, SnapshotError, TreeError)
"""Every error whose text is such a sentence: ours, and those that the shaper raises."""
