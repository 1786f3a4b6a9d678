from p3_agent.budget import Budget


def test_a_burst_then_one_at_a_time_and_peace_fills_it_up_again() -> None:
    budget = Budget(3, 30.0)
    for _ in range(3):
        assert budget.wait_s(100.0) == 0
        budget.spend(100.0)
    assert budget.wait_s(100.0) == 30
    assert budget.wait_s(115.0) == 15
    assert budget.wait_s(130.0) == 0
    budget.spend(130.0)
    assert budget.wait_s(130.0) == 30
    assert budget.wait_s(1000.0) == 0


def test_repairs_that_were_asked_for_out_of_turn_are_owed_but_not_without_end() -> None:
    budget = Budget(3, 30.0)
    for _ in range(100):
        budget.spend(0.0)
    assert budget.wait_s(0.0) == 30 * 4
