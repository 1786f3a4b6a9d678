"""What the commands do alike at the terminal's side, whatever becomes of it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable


def carried_out(program: str, command: Callable[[], int]) -> int:
    """The exit status of `command`, once all that it printed is out; 1 where that cannot be.

    Ctrl-C and what the system refuses (a full disk below standard output, no more open files) are
    a sentence, too. Whoever reads standard output may have read enough, and be gone.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names need not be UTF-8
    try:
        code = command()
        print(end="", flush=True)  # nothing where standard output is closed
    except KeyboardInterrupt:
        print(f"{program}: interrupted; run it again", file=sys.stderr)
        return 1
    except OSError as error:
        if sys.stdout is not None:  # what is left would be tried again at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"{program}: the system refused: {error}; mend that, run again", file=sys.stderr)
        return 1
    return code
