from pathlib import Path

import pytest

from p3_agent.config import Options, read_file, settings
from p3_agent.errors import AgentError
from p3_shaper.bands import DEFAULT_DSCPS
from p3_shaper.rates import parse_rate

WHOLE = """
device = "eth0"
rate = "10gbit"
bands = 2
mode = "htb"
takeover = true
socket = "/run/a.sock"
state_dir = "/var/lib/a"
dscps = [46, 9, 7]
force_dscps = true
unmarked_share = 0.2
group = "training"
reconcile_s = 5
"""


def read(path: Path, text: str) -> Options:
    path.write_text(text)
    return read_file(path)


def test_every_key_is_read(tmp_path: Path) -> None:
    wanted = settings(read(tmp_path / "c.toml", WHOLE))
    assert wanted.device == "eth0"
    assert wanted.rate == parse_rate("10gbit")
    assert wanted.table.dscps == (46, 9)
    assert wanted.table.unmarked_share == 0.2
    assert wanted.mode == "htb"
    assert wanted.takeover
    assert (wanted.socket, wanted.state_dir) == (Path("/run/a.sock"), Path("/var/lib/a"))
    assert (wanted.group, wanted.reconcile_s) == ("training", 5.0)


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P3_AGENT_SOCKET", raising=False)
    wanted = settings(Options(device="eth0"))
    assert wanted.table.dscps == DEFAULT_DSCPS
    assert wanted.rate is None
    assert wanted.mode == "auto"
    assert not wanted.takeover
    assert wanted.socket == Path("/run/p3-agent/control.sock")
    assert wanted.state_dir == Path("/var/lib/p3-agent")
    assert wanted.group == "p3"


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = read(tmp_path / "c.toml", WHOLE)
    wanted = settings(Options(rate="1gbit", bands=3).over(file))
    assert wanted.rate == parse_rate("1gbit")
    assert wanted.table.dscps == (46, 9, 7)
    assert wanted.takeover


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("device = ", "not TOML"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "not TOML"),
        ("colour = 1", "unknown field `colour`"),
        ("bands = '7'", "Expected `int"),
        ("mode = 'fifo'", "mode"),
        ("reconcile_s = 0", "reconcile_s"),
        ("reconcile_s = nan", "reconcile_s"),
        ("bands = " + "9" * 5000, "not TOML"),
        ("bands = " + "[" * 100_000, "not TOML"),
        ('socket = ""', "socket"),
        *((f'{key} = "\\u0000"', key) for key in ("socket", "state_dir", "group", "metrics")),
    ],
    ids=lambda text: text[:20],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(AgentError, match=what) as caught:
        read(tmp_path / "c.toml", text)
    assert str(tmp_path / "c.toml") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="No such file"):
        read_file(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (Options(), "--dev"),
        (Options(device=""), "ip link"),
        (Options(device="sixteen-letters-"), "ip link"),
        (Options(device="eth\udcff"), "ip link"),
        (Options(device="eth0", rate="100"), "no unit"),
        (Options(device="eth0", rate="100mbps"), "mbit"),
        (Options(device="eth0", rate="9" * 5000 + "mbit"), "not a rate"),
        (Options(device="eth0", bands=10**30), "choose"),
        (Options(device="eth0", dscps=(10**30,)), "1..63"),
        (Options(device="eth0", bands=0), "choose"),
        (Options(device="eth0", bands=8), "dscps"),
        (Options(device="eth0", dscps=(46,)), "risky"),
        (Options(device="eth0", dscps=()), "dscps"),
        (Options(device="eth0", dscps=(9, 9)), "already band"),
        (Options(device="eth0", unmarked_share=1.0), "share"),
    ],
)
def test_settings_that_cannot_work(options: Options, what: str) -> None:
    with pytest.raises(AgentError, match=what):
        settings(options)
