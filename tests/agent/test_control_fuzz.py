"""Everything that can be said to the control socket: 100,000 inputs, and no crash, leak or hang."""

import asyncio
import gc
import json
import socket
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from agent.garbage import batches
from agent.inside import daemon_of
from agent.running import Place, settled
from hypothesis import HealthCheck, given, settings

from p3_agent import client
from p3_agent.control import Conversation
from p3_agent.messages import MAX_REPLY
from p3_agent.peers import Peer

ANSWERS = {"welcome", "bands", "status", "done", "error"}
CODES = {"malformed", "too-large", "protocol", "forbidden", "failed", "busy"}
EXAMPLES, BATCH = 400, 250
NOBODY = Peer(0, 65534, frozenset({65534}))

quick = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
many, some = settings(quick, max_examples=EXAMPLES), settings(quick, max_examples=60)


def check(reply: bytes) -> str:
    """A reply's type, or a refusal's code."""
    assert len(reply) <= MAX_REPLY
    answer = json.loads(reply)
    assert answer["type"] in ANSWERS
    if answer["type"] != "error":
        return str(answer["type"])
    assert answer["code"] in CODES
    assert answer["reason"]
    return str(answer["code"])


def ours() -> Counter[str]:
    """How many values of the agent's own types are alive."""
    gc.collect()
    kinds = (type(value) for value in gc.get_objects())
    # Some libraries' types hold a descriptor there, not a name.
    return Counter(k.__qualname__ for k in kinds if str(k.__module__).startswith("p3_agent"))


def test_a_hundred_thousand_requests_are_each_answered(here: Place) -> None:
    heard: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        daemon = runner.run(stack.enter_async_context(daemon_of(here)))

        async def converse(requests: list[bytes]) -> None:
            conversation = Conversation(daemon, NOBODY)
            for request in requests:
                heard[check(await conversation.answer(request))] += 1
            conversation.end()
            assert len(asyncio.all_tasks()) == len(tasks)

        async def running() -> list[str]:
            return [task.get_name() for task in asyncio.all_tasks()]

        tasks = runner.run(running())

        @many
        @given(batches(BATCH))
        def send(requests: list[bytes]) -> None:
            runner.run(converse(requests))

        runner.run(converse([b'{"type":"status"}']))
        before = ours()
        send()
        assert ours() == before
        assert daemon.jobs.all() == ()
        runner.run(stack.aclose())
    assert heard.total() >= 100_000
    assert heard.keys() >= ANSWERS - {"error"} | CODES - {"failed", "busy"}


def resident(pid: int) -> int:
    """Kilobytes of memory that a process has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def test_a_running_agent_survives_what_root_may_send(here: Place) -> None:
    heard: Counter[str] = Counter()
    with here.running("--rate", "200mbit") as agent:

        @some
        @given(batches(60))
        def send(requests: list[bytes]) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.settimeout(20)
                connection.connect(str(here.socket))
                for request in requests:
                    connection.sendall(request)
                    heard[check(connection.recv(MAX_REPLY + 1))] += 1

        send()
        descriptors, memory = agent.descriptors(), resident(agent.pid)
        send()
        assert client.set_rate("200mbit", here.socket) is not None
        assert settled(agent, str(here.socket), descriptors)
        assert resident(agent.pid) < memory + 8192
        assert here.agent("plan", "--rate", "200mbit").stdout.endswith("it is in place\n")
        assert agent.stop() == 0
    assert heard.total() >= 7000
    assert heard.keys() >= ANSWERS - {"error"} | {"malformed", "too-large"}
