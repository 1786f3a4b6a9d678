"""A link of the discrete-event model: who gets how much of it, and when."""

from __future__ import annotations

import pytest

from p3.simulation.link import Clock, Job


class Sent:
    """Jobs put on a link, and when each was done."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ends: dict[str, float] = {}

    def send(
        self,
        name: str,
        key: int,
        work_s: float,
        *,
        share: float = 1,
        flow: int = 0,
        band: int = 0,
    ) -> None:
        def done() -> None:
            self.ends[name] = self.clock.now

        self.clock.send(Job(flow, (key,), work_s, share, done, band))

    def to_end(self) -> dict[str, float]:
        while self.clock.step():
            pass
        assert self.clock.is_idle
        return {name: round(when, 6) for name, when in self.ends.items()}


def test_a_more_urgent_band_preempts() -> None:
    link = Sent()
    link.send("late", 1, 3.0, band=1)
    link.clock.after(1.0, lambda: link.send("urgent", 2, 2.0))
    assert link.to_end() == {"urgent": 3.0, "late": 5.0}
    assert link.clock.busy_s == pytest.approx(5.0)


def test_in_a_band_the_most_urgent_goes_next_but_does_not_preempt() -> None:
    link = Sent()
    link.send("late", 2, 3.0)
    link.send("later", 3, 1.0)
    link.clock.after(1.0, lambda: link.send("urgent", 1, 2.0))
    assert link.to_end() == {"late": 3.0, "urgent": 5.0, "later": 6.0}


def test_what_one_cannot_use_is_the_next_ones() -> None:
    link = Sent()
    link.send("first", 1, 1.0, share=0.25)
    link.send("second", 2, 1.0, share=0.5)
    link.send("third", 3, 1.0)
    # A quarter, a half and a quarter; then the last two share what is left of their needs.
    assert link.to_end() == {"second": 2.0, "third": 2.666667, "first": 4.0}


def test_flows_share_evenly_and_each_keeps_its_order() -> None:
    link = Sent()
    link.send("urgent", 1, 1.0, flow=0)
    link.send("other", 2, 1.0, flow=1)
    link.send("others next", 3, 1.0, flow=1)
    link.send("little", 4, 0.2, share=0.2, flow=2)
    assert link.to_end() == {"little": 1.0, "urgent": 2.2, "other": 2.2, "others next": 3.2}


def test_equals_are_served_as_they_came_and_an_empty_link_stays_idle() -> None:
    link = Sent()
    link.send("one", 1, 1.0)
    link.send("two", 1, 1.0)
    link.clock.after(5.0, lambda: link.send("later", 1, 1.0))
    assert link.to_end() == {"one": 1.0, "two": 2.0, "later": 6.0}
    assert link.clock.busy_s == pytest.approx(3.0)
