import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.running import Place, add_foreign

from p3_agent.errors import AgentError
from p3_agent.state import Identity, Saved, StateStore

IDENTITY = Identity("boot", 7, 2, "02:00:00:00:00:01")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "deep" / "state")
    assert store.load(IDENTITY) is None
    store.save(IDENTITY, Saved("eth0", b"\x00\xff"))
    assert store.load(IDENTITY) == Saved("eth0", b"\x00\xff")
    assert [path.name for path in (tmp_path / "deep" / "state").iterdir()] == [
        store.path(IDENTITY).name
    ]
    store.remove(IDENTITY)
    assert store.load(IDENTITY) is None
    store.remove(IDENTITY)


@pytest.mark.parametrize(
    "other",
    [
        Identity("later", 7, 2, IDENTITY.mac),
        Identity("boot", 8, 2, IDENTITY.mac),
        Identity("boot", 7, 3, IDENTITY.mac),
        Identity("boot", 7, 2, "02:00:00:00:00:02"),
    ],
)
def test_another_boot_namespace_index_or_mac_is_another_interface(
    tmp_path: Path, other: Identity
) -> None:
    store = StateStore(tmp_path)
    store.save(IDENTITY, Saved("eth0", b""))
    assert store.load(other) is None


def test_earlier_boots_are_swept(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    for boot in ("boot", "earlier"):
        store.save(Identity(boot, 7, 2, IDENTITY.mac), Saved("eth0", b""))
    store.sweep("boot")
    assert [path.name for path in tmp_path.iterdir()] == [store.path(IDENTITY).name]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"device":"eth0","snapshot":"","version":9}'])
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    store = StateStore(tmp_path)
    store.path(IDENTITY).write_bytes(data)
    with pytest.raises(AgentError, match="remove the file"):
        store.load(IDENTITY)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AgentError, match="--state-dir"):
        StateStore(tmp_path / "file").save(IDENTITY, Saved("eth0", b""))


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A directory that holds not one byte more."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "p3t", tmp_path], check=True)
    try:
        (tmp_path / "other").write_bytes(b"x" * 8192)
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_full_disk_is_named_and_leaves_nothing(full: Path) -> None:
    with pytest.raises(AgentError, match="No space left"):
        StateStore(full).save(IDENTITY, Saved("eth0", b"x"))
    assert [path.name for path in full.iterdir()] == ["other"]


def test_a_full_disk_stops_a_start_before_anything_changes(here: Place, full: Path) -> None:
    before = add_foreign(here)
    done = here.agent("run", "--rate", "200mbit", "--takeover", "--state-dir", str(full))
    assert done.returncode == 1
    assert "cannot save the original queueing" in done.stderr
    assert "No space left on device; free space there" in done.stderr
    assert here.shown() == before
    assert [path.name for path in full.iterdir()] == ["other"]


def test_a_disk_that_fills_up_later_keeps_nobody_from_going_back(here: Place, full: Path) -> None:
    before = add_foreign(here)
    (full / "other").unlink()
    with here.running("--rate", "200mbit", "--takeover", "--state-dir", str(full)) as agent:
        (full / "other").write_bytes(b"x" * 4096)
        assert agent.stop() == 0
        agent.await_line("No space left")
    assert here.shown() == before
    assert [path.name for path in full.iterdir()] == ["other"]
