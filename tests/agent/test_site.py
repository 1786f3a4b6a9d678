from dataclasses import replace

import pytest

from p3_agent.config import Options, settings
from p3_agent.errors import AgentError
from p3_agent.modes import Choice
from p3_agent.site import Site, at_rate, tree_for
from p3_shaper.link import Link
from p3_shaper.rates import Rate
from p3_shaper.tree import TreeError

LINK = Link(2, "eth0", "02:00:00:00:00:01", 1500, 65536, 4, None, is_up=True)
WANTED = settings(Options(device="eth0"))
GBIT = Rate(10**9)


def site(choice: Choice) -> Site:
    return Site(LINK, WANTED.table, choice, tree_for(choice, WANTED, LINK))


@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        (Choice("htb", GBIT, "why"), {"htb", "bfifo", "u32"}),
        (Choice("prio", None, "why"), {"prio", "bfifo", "u32"}),
        (Choice("ets", None, "why"), {"ets", "bfifo", "u32"}),
        (Choice("htb+prio", GBIT, "why"), {"htb", "prio", "bfifo", "u32"}),
        (Choice("mq+htb", GBIT, "why"), {"mq", "htb", "bfifo", "u32"}),
        (Choice("mq+prio", None, "why"), {"mq", "prio", "bfifo", "u32"}),
    ],
)
def test_every_mode_has_its_tree(choice: Choice, kinds: set[str]) -> None:
    made = site(choice)
    assert made.wanted.kinds == kinds
    assert len(made.wanted.bands) == 7
    assert made.describe().startswith(f"eth0: {choice.mode}")


def test_another_rate_keeps_the_mode() -> None:
    made = at_rate(site(Choice("htb+prio", GBIT, "why")), WANTED, Rate(2 * 10**9))
    assert (made.choice.mode, made.choice.rate) == ("htb+prio", Rate(2 * 10**9))


def test_mode_prio_has_no_rate_to_change() -> None:
    with pytest.raises(AgentError, match="holds no rate"):
        at_rate(site(Choice("prio", None, "why")), WANTED, GBIT)


def test_guarantees_are_checked_against_the_rate() -> None:
    greedy = replace(WANTED, guarantee=Rate(2 * 10**8))
    with pytest.raises(TreeError, match="add up"):
        tree_for(Choice("htb", GBIT, "why"), greedy, LINK)
    with pytest.raises(AgentError, match="mode htb only"):
        tree_for(Choice("prio", None, "why"), greedy, LINK)
