"""When a server has heard every worker's step(), and what it does not believe."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p3.commits import Commit, CommitError, Commits, SettingsError, decode, encode
from p3.run_states import RunState, StateError
from p3.run_states import decode as decode_states
from p3.run_states import encode as encode_states
from p3.server_update import Recipe, SliceOptimizer, most_state_bytes
from p3.slicing import Parameter, make_plan

ADAM: dict[str, bool | int | float | str | tuple[float, ...] | None] = {
    "lr": 0.1,
    "betas": (0.9, 0.999),
    "amsgrad": False,
    "foreach": None,
    "steps": 3,
    "name": "adam",
}


def test_a_commit_travels_unchanged() -> None:
    for commit in (Commit((ADAM, {"lr": 1e-30}), (3, 7)), Commit(None)):
        assert decode(encode(commit)) == commit


@given(st.binary(max_size=60))
def test_anything_else_is_no_commit_and_no_state(data: bytes) -> None:
    for parse, error in ((decode, CommitError), (decode_states, StateError)):
        try:
            parse(data)
        except error:
            continue


def test_an_iteration_is_agreed_when_all_workers_have_stepped() -> None:
    commits = Commits(3)
    assert not commits.add(2, 0, Commit((ADAM,), (1, 2, 5)))
    assert not commits.add(0, 0, Commit((ADAM,), (2, 5)))
    assert commits.waits_for(1) == 0
    assert commits.waits_for(0) is None
    assert commits.agreed(0) is None
    # The others may be one step ahead before the last one has stepped.
    assert not commits.add(0, 1, Commit((ADAM,)))
    assert commits.add(1, 0, Commit((ADAM,), (5, 2, 9)))
    # A parameter is absent where no worker has it.
    assert commits.agreed(0) == Commit((ADAM,), (2, 5))


@pytest.mark.parametrize("iteration", [0, 3, -1])
def test_a_step_out_of_turn_is_refused(iteration: int) -> None:
    commits = Commits(2)
    commits.add(0, 0, Commit((ADAM,)))
    commits.add(1, 0, Commit((ADAM,)))
    with pytest.raises(CommitError, match="which is in 1"):
        commits.add(0, iteration, Commit((ADAM,)))


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Commit(({**ADAM, "lr": 0.2},)), r"group 0: lr 0.1 and 0.2"),
        (Commit((ADAM, ADAM)), r"1 and 2 parameter groups"),
        (Commit(None), r"rank 0 calls step\(\) where rank 1 calls zero_grad\(\)"),
    ],
)
def test_workers_that_differ_are_named(other: Commit, reason: str) -> None:
    commits = Commits(2)
    commits.add(0, 0, Commit((ADAM,)))
    with pytest.raises(SettingsError, match=reason):
        commits.add(1, 0, other)


@pytest.mark.native_threads
def test_states_that_are_not_of_the_slice_are_refused() -> None:
    plan = make_plan([Parameter("p", 70_000, "float32", 4, 0)], 2, 80_000)
    server = SliceOptimizer(plan, 0, Recipe("Adam", (0,)))
    whole = torch.arange(70_000.0)
    runs = [whole[:32_000], whole[32_000:64_000], whole[64_000:]]
    given = [
        RunState(0, 32_000 * number, run, {"step": torch.tensor(3.0), "exp_avg": run + 1})
        for number, run in enumerate(runs)
    ]
    text = encode_states(given)
    assert len(text) <= most_state_bytes(plan.slices[0])
    server.load(0, decode_states(text))
    states = server.dump(0)
    assert [one.start for one in states] == [0, 32_000, 64_000]
    for one, run in zip(states, runs, strict=True):
        assert one.state is not None
        assert one.state["step"] == 3
        assert torch.equal(one.state["exp_avg"], run + 1)
    wrong = [
        (RunState(0, 5, None, None), "no run of parameter 0 at 5"),
        (RunState(0, 0, runs[2], None), "has 32000 elements"),
        (RunState(0, 0, runs[0].double(), None), "comes as torch.float64"),
        (RunState(0, 0, None, {"exp_avg": runs[2]}), "has 32000 elements"),
    ]
    for state, reason in wrong:
        with pytest.raises(StateError, match=reason):
            server.load(0, [state])
    with pytest.raises(StateError, match="no dtype"):
        decode_states(msgspec.msgpack.encode([(0, 0, ("strange", 1, b""), None)]))
