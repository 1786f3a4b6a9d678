from collections.abc import Iterator

import pytest
from agent.running import Place, place


@pytest.fixture
def here() -> Iterator[Place]:
    """A namespace with an eth0 that nobody shapes yet."""
    with place() as made:
        yield made
