import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    with (
        pytest.raises(AgentError, match="--state-dir"),
        StateStore(tmp_path / "file").lock(IDENTITY),
    ):
        pass


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "p3t", tmp_path], check=True)
    try:
        store = StateStore(tmp_path)
        with pytest.raises(AgentError, match="No space left"):
            store.save(IDENTITY, Saved("eth0", b"x" * 20000))
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


HOLD = """
import sys
from pathlib import Path
from p3_agent.state import Identity, StateStore
with StateStore(Path(sys.argv[1])).lock(Identity("boot", 7, 2, "02:00:00:00:00:01")):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_holds_an_interface(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(AgentError, match=f"pid {holder.pid}"), store.lock(IDENTITY):
            pass
        with store.lock(Identity("boot", 7, 3, IDENTITY.mac)):
            pass
        holder.kill()
    assert os.listdir(tmp_path), "a killed holder cannot remove its lock file"  # noqa: PTH208
    with store.lock(IDENTITY):
        pass
    assert list(tmp_path.iterdir()) == []
