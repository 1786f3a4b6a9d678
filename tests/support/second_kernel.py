"""Runs tests of kinds that the running kernel lacks in a second one, all of them in one boot.

A test marked `needs_kinds("prio", ...)` runs like any other where the kernel has these kinds, one
marked `lacks_kinds(...)` where it has none of them. All others, and those marked `second_kernel`,
run at the end in the kernel that scripts/in-kernel boots, by a pytest of their own; what it reports
of a test is reported here as that test's outcome. Without that kernel they fail: none is skipped.
Tests marked `calm` run last here, while that kernel is at work on the others, and half of them in
another pytest beside this one: they wait more than they work.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from support.other_pytest import REPORTS, OtherPytest, Reporter, Reports

from p3_shaper.kinds import missing_kinds

IN_KERNEL = Path(__file__).parents[2] / "scripts" / "in-kernel"
_NEEDS, _LACKS, _ALWAYS = "needs_kinds", "lacks_kinds", "second_kernel"
_CALM = "calm"
_LINK = "link:"
_ELSEWHERE = "in the second kernel, by scripts/in-kernel,"
_BESIDE = "in a pytest beside the one that was started"


def in_second_kernel() -> bool:
    """Whether this process runs in it."""
    return "P3_IN_KERNEL" in os.environ


def register(config: pytest.Config) -> None:
    """Makes the markers known and does what they ask for."""
    for line in (
        f"{_NEEDS}(*kinds): runs where the kernel has these kinds (of qdisc, filter, or link:KIND)",
        f"{_LACKS}(*kinds): runs where the kernel has none of these kinds",
        f"{_ALWAYS}: runs in the second kernel, whatever this one has",
        f"{_CALM}: measures nothing, and bears others' load: runs beside them",
    ):
        config.addinivalue_line("markers", line)
    reports = os.environ.pop(REPORTS, None)  # and not those of a pytest that a test starts
    alone = reports is not None or config.getoption("usepdb")
    config.pluginmanager.register(_Here() if in_second_kernel() else _Elsewhere(alone=alone))
    if reports is not None:
        config.pluginmanager.register(Reporter(config, Path(reports)))


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
    """Sends tests to the second kernel, and to another pytest unless this one is `alone`."""

    def __init__(self, *, alone: bool) -> None:
        self._alone = alone
        self._others: list[_Other] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        kinds = _Kinds(session.items)
        sent = [item for item in session.items if kinds.obstacle(item)]
        here = [item for item in session.items if item not in sent]
        calm = [item for item in here if item.get_closest_marker(_CALM)]
        beside = [] if self._alone else _half(calm)
        if not sent and not beside:
            return
        self._others = [_Other(sent, _ELSEWHERE, IN_KERNEL), _Other(beside, _BESIDE)]
        calm = [item for item in calm if item not in beside]
        first = [item for item in here if item not in calm and item not in beside]
        # To the end, so that what the others share is torn down as pytest expects.
        session.items[:] = [*first, *calm, *beside, *sent]

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        mine = next((other for other in self._others if item.nodeid in other.nodeids), None)
        if mine is not None or item.get_closest_marker(_CALM):
            for other in self._others:
                other.start(item.config)
        if mine is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in mine.reports(item.nodeid):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_sessionfinish(self) -> None:
        for other in self._others:
            other.close()


class _Other:
    """Tests that another pytest runs, if there are any, and that pytest, once it is needed."""

    def __init__(self, items: Sequence[pytest.Item], where: str, through: Path | None = None):
        self.nodeids = {item.nodeid: None for item in items}
        self._where = where
        self._through = "" if through is None else str(through)
        self._pytest: OtherPytest | None = None
        self._reports: Reports | None = None

    def start(self, config: pytest.Config) -> None:
        """Have it begin, if it has not."""
        if self._pytest is None and self.nodeids:
            self._pytest = OtherPytest(config, [*self.nodeids], self._where, self._through)

    def reports(self, nodeid: str) -> list[pytest.TestReport]:
        """What it reported of a test, once it is through with all."""
        assert self._pytest is not None
        if self._reports is None:
            self._reports = self._pytest.reports()
        return self._reports[nodeid]

    def close(self) -> None:
        """End it if it still runs."""
        if self._pytest is not None:
            self._pytest.close()


def _half(calm: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Every other module of them, so that what a module's tests share is made once."""
    modules = list(dict.fromkeys(item.path for item in calm))
    return [item for item in calm if modules.index(item.path) % 2]


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
