from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.running import Place, place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nothing here measures."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.calm)


@pytest.fixture
def here() -> Iterator[Place]:
    """A namespace with an eth0 that nobody shapes yet."""
    with place() as made:
        yield made
