"""Runs tests of kinds that the running kernel lacks in a second one, all of them in one boot.

A test marked `needs_kinds("prio", ...)` runs like any other where the kernel has these kinds, one
marked `lacks_kinds(...)` where it has none of them. All others, and those marked `second_kernel`,
run at the end in the kernel that scripts/in-kernel boots, by a pytest of their own; what it reports
of a test is reported here as that test's outcome. Without that kernel they fail: none is skipped.
Tests marked `calm` run last here, while that kernel is at work on the others.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from p3_shaper.kinds import missing_kinds

IN_KERNEL = Path(__file__).parents[2] / "scripts" / "in-kernel"
_NEEDS, _LACKS, _ALWAYS = "needs_kinds", "lacks_kinds", "second_kernel"
_CALM = "calm"
_LINK = "link:"
_REPORTS = "P3_KERNEL_REPORTS"
"""Where the tests of the second kernel are reported to, if this is it: a file, a line a report."""
_PATIENCE_S = 240
"""Without another report. More than pytest there has with one test: it says where that hangs."""
_PATIENCE_WITH_A_TEST_S = 120

Reports = dict[str, list[pytest.TestReport]]


def in_second_kernel() -> bool:
    """Whether this process runs in it."""
    return "P3_IN_KERNEL" in os.environ


def register(config: pytest.Config) -> None:
    """Makes the markers known and does what they ask for."""
    for line in (
        f"{_NEEDS}(*kinds): runs where the kernel has these kinds (of qdisc, filter, or link:KIND)",
        f"{_LACKS}(*kinds): runs where the kernel has none of these kinds",
        f"{_ALWAYS}: runs in the second kernel, whatever this one has",
        f"{_CALM}: measures nothing, and bears another's load: runs beside the second kernel",
    ):
        config.addinivalue_line("markers", line)
    config.pluginmanager.register(_Here() if in_second_kernel() else _Elsewhere())
    if _REPORTS in os.environ:
        config.pluginmanager.register(_Reporter(config, Path(os.environ[_REPORTS])))


class _Kinds:
    """What the running kernel lacks of the kinds that tests ask about."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self._missing = _missing({name for item in items for name in _named(item, _NEEDS, _LACKS)})

    def obstacle(self, item: pytest.Item) -> str:
        """Why `item` cannot run in this kernel, "" if it can."""
        if item.get_closest_marker(_ALWAYS) and not in_second_kernel():
            return "this kernel is not the second one"
        if lacking := sorted(_named(item, _NEEDS) & self._missing):
            return f"this kernel has no {', '.join(lacking)}"
        if present := sorted(_named(item, _LACKS) - self._missing):
            return f"this kernel has {', '.join(present)}"
        return ""


class _Here:
    """In the second kernel, there is no third one."""

    def __init__(self) -> None:
        self._kinds = _Kinds(())

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._kinds = _Kinds(session.items)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if obstacle := self._kinds.obstacle(item):
            pytest.fail(
                f"no kernel for this test: the machine's own is not, and {obstacle} in User Mode "
                "Linux; run it on a machine whose kernel is",
                pytrace=False,
            )


class _Elsewhere:
    """Sends tests to the second kernel."""

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._boot: _Boot | None = None
        self._reports: Reports | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        kinds = _Kinds(session.items)
        sent = [item for item in session.items if kinds.obstacle(item)]
        self._sent = [item.nodeid for item in sent]
        here = [item for item in session.items if item not in sent]
        calm = [item for item in here if sent and item.get_closest_marker(_CALM)]
        # To the end, so that what the others share is torn down as pytest expects.
        session.items[:] = [item for item in here if item not in calm] + calm + sent

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        is_sent = item.nodeid in self._sent
        if self._boot is None and self._sent and (is_sent or item.get_closest_marker(_CALM)):
            self._boot = _Boot(item.config, self._sent)
        if not is_sent or self._boot is None:
            return None
        if self._reports is None:
            self._reports = self._boot.reports()
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports[item.nodeid]:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        if self._boot is not None:
            self._boot.close()


class _Reporter:
    """Writes down what is reported, for the pytest outside."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as file:
            file.write(f"{json.dumps(data)}\n")


def _named(item: pytest.Item, *markers: str) -> set[str]:
    return {str(kind) for name in markers for mark in item.iter_markers(name) for kind in mark.args}


def _missing(names: set[str]) -> frozenset[str]:
    links = {name for name in names if name.startswith(_LINK)}
    return asyncio.run(missing_kinds(names - links)) | {
        name for name in links if not _has_link(name.removeprefix(_LINK))
    }


def _has_link(kind: str) -> bool:
    """In a namespace that ends with the try; some kinds lack more than a name (vlan's number)."""
    command = ["unshare", "--net", "ip", "link", "add", "name", "probe0", "type", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "Unknown device type" not in done.stderr


class _Boot:
    """The second kernel at work on tests, from the start on; `close` ends it whatever it is at."""

    def __init__(self, config: pytest.Config, nodeids: list[str]) -> None:
        self._config = config
        self._nodeids = nodeids
        self._held = ExitStack()
        directory = self._held.enter_context(tempfile.TemporaryDirectory(prefix="p3t-kernel-"))
        self._reports, self._said = Path(directory, "reports"), Path(directory, "said")
        arguments = Path(directory, "arguments")
        self._reports.touch()
        arguments.write_text("\n".join(nodeids))
        patience = f"faulthandler_timeout={_PATIENCE_WITH_A_TEST_S}"
        pytest_there = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", patience]
        with self._said.open("wb") as said:
            self._process = self._held.enter_context(
                subprocess.Popen(
                    [str(IN_KERNEL), "-w", directory, *pytest_there, f"@{arguments}"],
                    cwd=config.rootpath,
                    env={**os.environ, _REPORTS: str(self._reports)},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
        self._held.callback(self._process.kill)  # which ends the kernel with it

    def close(self) -> None:
        """End it if it still runs; nothing is left."""
        self._held.close()

    def reports(self) -> Reports:
        """Every test's reports; of one that the kernel or pytest did not get to, that it failed."""
        ended = self._end()
        found: Reports = {nodeid: [] for nodeid in self._nodeids}
        for report in _read(self._config, self._reports):
            report.sections.append(("where", "in the second kernel, by scripts/in-kernel"))
            found[report.nodeid].append(report)
        for nodeid, of_test in found.items():
            if not any(report.when == "teardown" for report in of_test):
                of_test.append(_not_ended(nodeid, ended))
        return found

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
        return f"scripts/in-kernel {how}:\n{self._said.read_text(errors='replace')[-4000:]}"


def _read(config: pytest.Config, path: Path) -> Iterator[pytest.TestReport]:
    for line in path.read_text().splitlines():
        data = json.loads(line)
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        assert isinstance(report, pytest.TestReport)
        yield report


def _not_ended(nodeid: str, ended: str) -> pytest.TestReport:
    path = nodeid.partition("::")[0]
    return pytest.TestReport(
        nodeid,
        (path, None, nodeid.partition("::")[2]),
        {},
        "failed",
        f"this kernel lacks what the test needs, and in the second one it did not end: {ended}",
        "call",
    )
