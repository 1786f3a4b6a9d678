"""Goes back for an agent that is killed before its bands are confirmed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from p3_agent.config import Settings

# A shell that waits for a word: little to keep in memory, and nothing of the agent's in it.
_SCRIPT = 'read word || exec "$@"'


class Guard:
    """A process that restores the interface unless it is released before this process ends.

    It survives the agent's `kill -9` and the end of the terminal's session, and nothing else: not
    its own kill, nor that of a whole control group.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def release(self) -> None:
        """Nothing is to be restored any more: the process ends."""
        words = self._process.stdin
        if words is None or words.closed:
            return
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):  # killed or stopped by someone
            words.write(b"\n")
            words.close()
            self._process.wait(1)


@contextmanager
def guard(settings: Settings) -> Iterator[Guard]:
    """Have `p3-agent restore` run if this process is killed; released at the end."""
    restore = restore_command(settings)
    with subprocess.Popen(
        ["sh", "-c", _SCRIPT, "p3-agent-guard", *restore],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C and a hang-up are the agent's to handle
    ) as process:
        made = Guard(process)
        try:
            yield made
        finally:
            made.release()


def restore_command(settings: Settings) -> Sequence[str]:
    """The command that puts back what was there before an agent with `settings`.

    -P: it runs with the agent's rights, and nothing in the current directory may have a part in it.
    """
    place = ("--dev", settings.device, "--state-dir", str(settings.state_dir.absolute()))
    return (sys.executable, "-P", "-m", "p3_agent", "restore", *place)
