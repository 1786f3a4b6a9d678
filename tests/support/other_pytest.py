"""A pytest of its own at work on some tests; what it reports of them is reported here."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

REPORTS = "P3_TEST_REPORTS"
"""Where the tests of such a pytest are reported to, if this is one: a file, a line a report."""
_PATIENCE_S = 360
"""Without another report. More than pytest there has with one test: it says where that hangs."""
_GRACE_S = 20
"""For its tests to clean up after themselves when it is ended early."""

Reports = dict[str, list[pytest.TestReport]]


class OtherPytest:
    """At work from the start on; `close` ends it whatever it is at.

    `where` completes the sentence "this test ran …". With `through` it is run by that command,
    which must be given `-w` and the directory for the reports, and which SIGKILL ends cleanly.
    """

    def __init__(
        self, config: pytest.Config, nodeids: Sequence[str], where: str, through: str = ""
    ) -> None:
        self._config = config
        self._nodeids = nodeids
        self._where = where
        self._held = ExitStack()
        directory = self._held.enter_context(tempfile.TemporaryDirectory(prefix="p3t-pytest-"))
        self._reports, self._said = Path(directory, "reports"), Path(directory, "said")
        arguments = Path(directory, "arguments")
        self._reports.touch()
        arguments.write_text("\n".join(nodeids))
        within = (through, "-w", directory) if through else ()
        pytest_there = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
        with self._said.open("wb") as said:
            self._process = self._held.enter_context(
                subprocess.Popen(
                    [*within, *pytest_there, f"@{arguments}"],
                    cwd=config.rootpath,
                    env={**os.environ, REPORTS: str(self._reports)},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches it once, by `close`
                )
            )
        self._held.callback(self._process.kill if through else self._interrupt)

    def close(self) -> None:
        """End it if it still runs; nothing is left."""
        self._held.close()

    def reports(self) -> Reports:
        """Every test's reports; of one that it did not get to or through, that it failed."""
        ended = self._end()
        found: Reports = {nodeid: [] for nodeid in self._nodeids}
        for report in _read(self._config, self._reports):
            report.sections.append(("where", self._where))
            found[report.nodeid].append(report)
        for nodeid, of_test in found.items():
            if not any(report.when == "teardown" for report in of_test):
                of_test.append(_not_ended(nodeid, f"{self._where} it did not end: {ended}"))
        return found

    def _interrupt(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _end(self) -> str:
        """How it ended, and the last that it said."""
        faulthandler.cancel_dump_traceback_later()  # pytest's patience with one test: this is many
        how, reported = "", -1
        while not how:
            try:
                how = f"ended with {self._process.wait(_PATIENCE_S)}"
            except subprocess.TimeoutExpired:
                size = self._reports.stat().st_size
                if size == reported:
                    how = f"was ended: it reported nothing for {_PATIENCE_S} s"
                    self._process.kill()
                reported = size
        return f"it {how}:\n{self._said.read_text(errors='replace')[-4000:]}"


class Reporter:
    """Writes down what is reported, for the pytest that reads it."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as file:
            file.write(f"{json.dumps(data)}\n")


def _read(config: pytest.Config, path: Path) -> Iterator[pytest.TestReport]:
    for line in path.read_text().splitlines():
        data = json.loads(line)
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        assert isinstance(report, pytest.TestReport)
        yield report


def _not_ended(nodeid: str, why: str) -> pytest.TestReport:
    path = nodeid.partition("::")[0]
    return pytest.TestReport(
        nodeid, (path, None, nodeid.partition("::")[2]), {}, "failed", why, "call"
    )
