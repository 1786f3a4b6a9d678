"""Which training processes are connected: what the agent tells of them, and nothing it acts on."""

from __future__ import annotations

from p3_agent.messages import MAX_JOBS, MAX_JOBS_OF_A_USER, ControlError, JobStatus


class Jobs:
    """At most MAX_JOBS processes, each for as long as its client stays connected."""

    def __init__(self) -> None:
        self._here: list[JobStatus] = []

    def enter(self, job: JobStatus) -> None:
        """One more process trains; ControlError `busy` when too many do, or of its user."""
        if len(self._here) >= MAX_JOBS:
            raise ControlError("busy", f"{MAX_JOBS} processes are registered already")
        if job.uid != 0 and sum(item.uid == job.uid for item in self._here) >= MAX_JOBS_OF_A_USER:
            raise ControlError(
                "busy",
                f"uid {job.uid} has {MAX_JOBS_OF_A_USER} processes registered already, as many as "
                "one user may",
            )
        self._here.append(job)

    def leave(self, job: JobStatus) -> None:
        """Its client is gone."""
        self._here.remove(job)

    def all(self) -> tuple[JobStatus, ...]:
        """The oldest first."""
        return tuple(self._here)
