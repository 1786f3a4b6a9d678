"""The leak check sees each kind of thing that a test may leave behind."""

from __future__ import annotations

import os
import subprocess
import threading

import pytest
from support import leaks

from p3_shaper.cluster import Pair


def leaked(before: leaks.Resources, settle: float = 0.0) -> list[str]:
    found = leaks.leaked_since(before, native_threads=True, settle=settle)
    return [resource.kind for resource in found]


@pytest.fixture
def before() -> leaks.Resources:
    return leaks.observe(native_threads=True)


def test_nothing_is_no_leak(before: leaks.Resources) -> None:
    assert leaked(before) == []


def test_namespaces(before: leaks.Resources) -> None:
    with Pair():
        assert leaked(before) == ["network namespace"] * 2
    assert leaked(before) == []


def test_a_namespace_that_no_test_would_name_so_is_left_alone(before: leaks.Resources) -> None:
    subprocess.run(["ip", "netns", "add", "p3-of-somebody"], check=True)
    try:
        assert leaked(before) == []
    finally:
        subprocess.run(["ip", "netns", "del", "p3-of-somebody"], check=True)


def test_children(before: leaks.Resources) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        assert leaked(before) == ["process"]
        child.kill()


def test_orphans(before: leaks.Resources) -> None:
    command = "sleep 1000 >/dev/null & echo $!"
    shell = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, check=True, text=True)
    found = leaks.leaked_since(before, native_threads=True, settle=0.0)
    assert list(found) == [leaks.Resource("process", shell.stdout.strip())]
    leaks.remove(found)
    assert leaked(before) == []


def test_threads(before: leaks.Resources) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert leaked(before) == ["thread"]
    end.set()
    assert leaked(before, settle=60.0) == []


def test_descriptors(before: leaks.Resources) -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert leaked(before) == ["file descriptor"]
    os.close(descriptor)
