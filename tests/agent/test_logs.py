"""Logging when nobody reads."""

import os
import signal
import subprocess

from agent.running import AGENT, PATIENCE, Place

from p3_agent import client

FILL = "x" * 4096


def test_an_unread_standard_error_does_not_hold_up_the_agent(here: Place) -> None:
    """Its pipe is full from the start, and is read only after the agent has worked on."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, FILL.encode())
    except BlockingIOError:
        os.set_blocking(writer, True)
    with subprocess.Popen(
        ["ip", "netns", "exec", here.name, AGENT, "run", *here.options, "--rate", "200mbit"],
        stdout=subprocess.PIPE,
        stderr=writer,
        env=here.environment,
    ) as agent:
        os.close(writer)
        assert agent.stdout is not None
        assert agent.stdout.readline().startswith(b"ready")
        here.tc("qdisc del dev eth0 root")
        while not client.reconcile(here.socket) and not repairs(here):
            pass
        with open(reader, "rb", buffering=0) as said:  # noqa: PTH123
            text = drain(said.fileno())
            here.tc("qdisc del dev eth0 root")
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(PATIENCE) == 0
            text += said.read().decode()
    assert "put back what was there" in text
    assert "lines could not be written)" in text


def repairs(here: Place) -> int:
    status = client.status(here.socket)
    return 0 if status is None else status.drift.repairs


def drain(descriptor: int) -> str:
    os.set_blocking(descriptor, False)
    text = ""
    try:
        while data := os.read(descriptor, 65536):
            text += data.decode()
    except BlockingIOError:
        os.set_blocking(descriptor, True)
    return text
