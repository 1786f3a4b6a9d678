import pytest

from p3_agent.errors import AgentError
from p3_agent.modes import Means, Wish, choose
from p3_shaper.rates import Rate

GBIT = Rate(10**9)
FAST = Rate(100 * 10**9)
BOTH = frozenset({"htb", "prio"})
HTB = frozenset({"htb"})
PRIO = frozenset({"prio"})
ETS = frozenset({"ets"})
NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("wish", "speed", "kinds", "result"),
    [
        (Wish("auto", GBIT, 7), None, BOTH, ("htb", GBIT)),
        (Wish("auto", None, 7), GBIT, HTB, ("htb", GBIT)),
        (Wish("auto", GBIT, 8), FAST, BOTH, ("htb+prio", GBIT)),
        (Wish("auto", None, 7), None, BOTH, ("prio", None)),
        (Wish("auto", None, 7), GBIT, PRIO, ("prio", None)),
        (Wish("auto", None, 7), FAST, BOTH, ("prio", None)),
        (Wish("auto", None, 7), FAST, HTB, ("htb", FAST)),
        (Wish("htb", None, 7), GBIT, BOTH, ("htb", GBIT)),
        (Wish("prio", None, 7), GBIT, BOTH, ("prio", None)),
        (Wish("ets", None, 7), GBIT, ETS, ("ets", None)),
        (Wish("htb+prio", GBIT, 16), None, BOTH, ("htb+prio", GBIT)),
        (Wish("mq+htb", None, 7), GBIT, HTB, ("mq+htb", GBIT)),
        (Wish("mq+prio", None, 7), GBIT, PRIO, ("mq+prio", None)),
    ],
)
def test_the_mode_follows_from_wish_and_means(
    wish: Wish, speed: Rate | None, kinds: frozenset[str], result: tuple[str, Rate | None]
) -> None:
    choice = choose(wish, Means("eth0", speed, kinds))
    assert (choice.mode, choice.rate) == result
    assert choice.reason


@pytest.mark.parametrize(
    ("wish", "speed", "kinds", "what"),
    [
        (Wish("auto", None, 7), None, HTB, "give --rate"),
        (Wish("auto", None, 7), GBIT, NONE, "no sch_prio"),
        (Wish("auto", GBIT, 7), None, PRIO, "no sch_htb"),
        (Wish("auto", GBIT, 8), None, HTB, "--bands 7"),
        (Wish("htb", None, 7), None, BOTH, "give --rate"),
        (Wish("htb", GBIT, 7), None, PRIO, "no sch_htb"),
        (Wish("prio", None, 7), None, HTB, "no sch_prio"),
        (Wish("prio", GBIT, 7), None, BOTH, "leave --rate out"),
        (Wish("htb+prio", GBIT, 7), None, HTB, "no sch_prio"),
        (Wish("ets", None, 7), GBIT, BOTH, "no sch_ets"),
        (Wish("ets", GBIT, 7), GBIT, ETS, "mode ets holds no rate.*leave --rate out"),
        (Wish("mq+htb", GBIT, 7), None, PRIO, "no sch_htb"),
        (Wish("mq+prio", GBIT, 7), None, PRIO, "leave --rate out"),
    ],
)
def test_what_cannot_be_is_said(
    wish: Wish, speed: Rate | None, kinds: frozenset[str], what: str
) -> None:
    with pytest.raises(AgentError, match=what):
        choose(wish, Means("eth0", speed, kinds))


def test_a_device_in_which_nothing_waits_is_not_left_without_a_rate() -> None:
    fast = Means("eth0.10", FAST, BOTH, holds_queue=False)
    assert choose(Wish("auto", None, 7), fast).mode == "htb"
    with pytest.raises(AgentError, match=r"nothing waits .* give --rate"):
        choose(Wish("auto", None, 7), Means("eth0.10", None, BOTH, holds_queue=False))
