"""Which training processes are connected: what the agent tells of them, and nothing it acts on."""

from __future__ import annotations

from p3_agent.messages import MAX_JOBS, ControlError, JobStatus


class Jobs:
    """At most MAX_JOBS processes, each for as long as its client stays connected."""

    def __init__(self) -> None:
        self._here: list[JobStatus] = []

    def enter(self, job: JobStatus) -> None:
        """One more process trains; ControlError `busy` when too many do."""
        if len(self._here) >= MAX_JOBS:
            raise ControlError("busy", f"{MAX_JOBS} processes are registered already")
        self._here.append(job)

    def leave(self, job: JobStatus) -> None:
        """Its client is gone."""
        self._here.remove(job)

    def all(self) -> tuple[JobStatus, ...]:
        """The oldest first."""
        return tuple(self._here)
