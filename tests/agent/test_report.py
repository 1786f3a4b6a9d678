import json

from p3_agent import report
from p3_agent.messages import ClassStatus, Drift, Status

CLASSES = (
    ClassStatus(0, 41, "7033:10", 1_000_000, 1_234_567, 900, 3, 65_000, 45, 7),
    ClassStatus(None, None, "7033:1f", None, 999, 1, 0, 0, 0, 0),
)
STATUS = Status(
    version="1",
    pid=7,
    device="eth0",
    index=2,
    mode="htb",
    reason="as asked",
    rate=1_500_000,
    state="ok",
    classes=CLASSES,
    tree=("qdisc htb 7033: root",),
    drift=Drift(1, ("add qdisc",)),
    reconciliations=4,
)


def test_text_has_a_row_for_each_class() -> None:
    lines = report.as_text(STATUS).splitlines()
    assert lines[0] == "eth0: htb at 1.5mbit (as asked), agent pid 7"
    rows = [line.split() for line in lines[4:6]]
    assert rows[0][:5] == ["0", "41", "7033:10", "1mbit", "1.2"]
    assert rows[1] == ["other", "-", "7033:1f", "-", "999", "B", "1", "0", "0", "B", "0"]
    assert "qdisc htb 7033: root" in lines
    assert lines[-1] == "last repair: add qdisc"


def test_json_is_the_status() -> None:
    shown = json.loads(report.as_json(STATUS))
    assert shown["classes"][0]["drops"] == 3
    assert shown["classes"][1]["band"] is None
    assert shown["rate"] == 1_500_000
