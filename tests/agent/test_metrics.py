"""What Prometheus gets from a running agent, and what it is asked for by the dashboard."""

import http.client
import json
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from agent.running import Agent, Place, place, send
from prometheus_client.parser import text_string_to_metric_families

from p3_agent import client
from p3_agent.scrape import MAX_CLIENTS, MAX_HEAD
from p3_shaper.bands import default_table

DASHBOARD = Path(__file__).parents[2] / "agent" / "grafana" / "p3-agent.json"
Samples = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Place, Agent]]:
    """A running agent for all of this module, with metrics on a unix socket."""
    with place() as made:
        address = f"unix:{made.directory / 'metrics.sock'}"
        with made.running("--rate", "200mbit", "--metrics", address) as agent:
            yield made, agent
            assert agent.stop() == 0


def connect(here: Place) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(str(here.directory / "metrics.sock"))
    return connection


def ask(here: Place, request: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    method = request.partition(b" ")[0].decode("latin-1")
    with connect(here) as connection:
        connection.sendall(request)
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        return response, response.read()


def samples(text: str) -> Samples:
    """Values by the sample's name, and its labels but the device."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "device")
            assert sample.labels["device"] == "eth0"
            found[sample.name, labels] = sample.value
    return found


def scrape(here: Place) -> Samples:
    response, body = ask(here, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain; version=")
    return samples(body.decode())


def test_a_scrape_is_what_the_kernel_counts(served: tuple[Place, Agent]) -> None:
    here, _ = served
    send(here, default_table().bands[2].tos, 10)
    job = client.register("vgg", here.socket)
    assert job is not None
    with job:
        found = scrape(here)
    assert found["p3_band_sent_packets_total", "band=2,dscp=23"] == 10
    assert found["p3_band_sent_bytes_total", "band=2,dscp=23"] == 1420
    assert found["p3_band_dropped_packets_total", "band=2,dscp=23"] == 0
    assert found["p3_band_backlog_bytes", "band=0,dscp=41"] == 0
    assert found["p3_band_guarantee_bytes_per_second", "band=unmarked,dscp="] == 2_500_000
    assert found["p3_interface_rate_bytes_per_second", ""] == 25_000_000
    assert found["p3_agent_ok", ""] == 1
    assert found["p3_job_processes", "job=vgg"] == 1
    assert [labels for name, labels in found if name == "p3_agent_info"] == [
        f"mode=htb,version={client_version(here)}"
    ]
    assert ("p3_job_processes", "job=vgg") not in scrape(here)


def client_version(here: Place) -> str:
    hello = client.hello(here.socket)
    assert hello is not None
    return hello.version


def test_repairs_and_checks_are_counted(served: tuple[Place, Agent]) -> None:
    here, agent = served
    before = scrape(here)
    here.tc("qdisc del dev eth0 root")
    agent.await_line("repaired")
    now = scrape(here)
    for name in ("p3_agent_drift_repairs_total", "p3_agent_reconciliations_total"):
        assert now[name, ""] > before[name, ""]


def test_an_agent_that_was_pushed_aside_is_not_ok(served: tuple[Place, Agent]) -> None:
    here, agent = served
    here.tc("qdisc del dev eth0 root", "qdisc add dev eth0 root handle 1: htb")
    agent.await_line("another program")
    assert scrape(here)["p3_agent_ok", ""] == 0
    here.tc("qdisc del dev eth0 root")
    agent.await_line("eth0: ok")
    assert scrape(here)["p3_agent_ok", ""] == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\xff\x00 \r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * MAX_HEAD, 431),
    ],
)
def test_other_requests_get_their_status(
    served: tuple[Place, Agent], request_: bytes, status: int
) -> None:
    response, body = ask(served[0], request_)
    assert response.status == status
    assert bool(body) == (b"HEAD" not in request_ and status != 431)


def test_clients_that_ask_nothing_stop_nobody(served: tuple[Place, Agent]) -> None:
    here, _ = served
    with ExitStack() as stack:
        for _ in range(MAX_CLIENTS):
            stack.enter_context(connect(here)).sendall(b"GET /met")
        with connect(here) as connection:
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 503
        assert client.hello(here.socket)
    while ask(here, b"GET /metrics HTTP/1.1\r\n\r\n")[0].status != 200:
        pass


SCRAPE = (
    "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=20).read().decode())"
)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_metrics_on_a_port(here: Place, host: str) -> None:
    assert here.run("ip", "link", "set", "lo", "up").returncode == 0
    config = here.config(f'rate = "200mbit"\nmetrics = "{host}:0"\n')
    with here.running("--config", config) as agent:
        address = agent.await_line("metrics at ").rpartition(" ")[2]
        done = here.run(sys.executable, "-c", SCRAPE, f"http://{address}/metrics")
        assert done.returncode == 0, done.stderr
        assert samples(done.stdout)["p3_agent_ok", ""] == 1
        taken = here.agent("run", "--metrics", address, "--socket", str(here.directory / "b"))
        assert taken.returncode == 1
        assert agent.stop() == 0


LACKING = """
import sys
sys.modules["prometheus_client"] = None  # as where it is not installed
from p3_agent.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_the_library_it_says_what_to_install(here: Place) -> None:
    before = here.shown()
    arguments = ("run", *here.options, "--rate", "200mbit", "--metrics", "127.0.0.1:0")
    done = here.run(sys.executable, "-c", LACKING, *arguments)
    assert done.returncode == 1
    assert "pip install 'prometheus-client>=0.20'" in done.stderr
    assert here.shown() == before


def test_a_port_that_is_taken_is_refused_before_anything_changes(here: Place) -> None:
    before = here.shown()
    path = here.directory / "metrics.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()
        done = here.agent("run", "--rate", "200mbit", "--metrics", f"unix:{path}")
    assert done.returncode == 1
    assert "something listens at" in done.stderr
    assert here.shown() == before


def test_the_dashboard_asks_for_what_there_is(served: tuple[Place, Agent]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [variable["query"] for variable in dashboard["templating"]["list"][1:]]
    asked = {name for query in queries for name in re.findall(r"\bp3_\w+", query)}
    job = client.register("vgg", served[0].socket)
    assert job is not None
    with job:
        exported = {name for name, _ in scrape(served[0])}
    assert asked <= exported
    assert exported - asked <= {"p3_agent_info", "p3_band_overlimits_total"}
    assert len({panel["id"] for panel in panels}) == len(panels)
