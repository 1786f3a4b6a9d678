"""Log records as journald takes them, on a real socket of its kind."""

import logging
import signal
import socket
import struct
from pathlib import Path

import pytest
from agent.running import Place

from p3_agent.journal import JournalHandler, priority_of

IN_A_JOURNAL = """
mount -t tmpfs none /run && mkdir /run/systemd && ln -s "$0" /run/systemd/journal
JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec "$@"
"""
"""Runs a command as systemd would whose standard error is the journal; $0: its socket's folder."""


def fields(entry: bytes) -> dict[str, str]:
    """An entry of systemd's native journal protocol."""
    found: dict[str, str] = {}
    while entry:
        line, _, entry = entry.partition(b"\n")
        name, has_value, value = line.partition(b"=")
        if not has_value:
            (size,) = struct.unpack_from("<Q", entry)
            value, entry = entry[8 : 8 + size], entry[9 + size :]
        found[name.decode()] = value.decode()
    return found


def journal(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(20)
    made.bind(str(path))
    return made


def test_a_record_is_an_entry_with_fields(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    handler = JournalHandler(logging.NullHandler(), str(path))
    log = logging.Logger("p3_agent.test")
    log.addHandler(handler)
    with journal(path) as heard:
        log.warning("two\nlines = %s", "é\udcff", extra={"event": "reload"})
        entry = fields(heard.recv(65536))
        assert entry.pop("CODE_LINE").isdigit()
        assert entry == {
            "MESSAGE": "two\nlines = é\\udcff",
            "PRIORITY": "4",
            "SYSLOG_IDENTIFIER": "p3-agent",
            "LOGGER": "p3_agent.test",
            "CODE_FILE": __file__,
            "CODE_FUNC": "test_a_record_is_an_entry_with_fields",
            "P3_EVENT": "reload",
        }
        log.info("x" * 100_000)
        assert len(fields(heard.recv(65536))["MESSAGE"]) == 16384
    handler.close()


def test_levels_are_syslogs() -> None:
    levels = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    assert [priority_of(level) for level in levels] == [7, 6, 4, 3, 2]


def test_a_journal_that_takes_nothing_more_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "socket"
    handler = JournalHandler(caplog.handler, str(path))
    log = logging.Logger("p3_agent.test")
    log.addHandler(handler)
    with journal(path):
        while not caplog.messages:
            log.error("one more")
    caplog.clear()
    log.error("nobody is there")
    assert caplog.messages == ["nobody is there"]
    handler.close()


def test_an_agent_whose_standard_error_is_the_journal_sends_entries(here: Place) -> None:
    wrapper = ("sh", "-ec", IN_A_JOURNAL, str(here.directory))
    config = here.config('rate = "200mbit"')
    with (
        journal(here.directory / "socket") as heard,
        here.running("--config", config, through=wrapper) as agent,
    ):
        here.config("rate = 1")
        agent.process.send_signal(signal.SIGHUP)
        while "P3_EVENT" not in (entry := fields(heard.recv(65536))):
            pass
        assert entry["P3_EVENT"] == "reload-refused"
        assert entry["PRIORITY"] == "3"
        assert "not reloaded" in entry["MESSAGE"]
        assert agent.stop() == 0


def test_without_a_journal_the_lines_have_priorities(here: Place) -> None:
    wrapper = ("sh", "-ec", IN_A_JOURNAL, str(here.directory))
    with here.running("--rate", "200mbit", through=wrapper) as agent:
        here.tc("qdisc del dev eth0 root")
        assert agent.await_line("repaired").startswith("<4>WARNING p3_agent.keeper: eth0")
        assert agent.stop() == 0
