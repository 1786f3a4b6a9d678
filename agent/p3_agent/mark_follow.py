"""A mark in the kernel that follows its cgroup: systemd makes a service's anew at each start."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from p3_agent.errors import AgentError
from p3_agent.mark import Cgroup, Mark
from p3_agent.mark_nft import Nft, NftError
from p3_shaper.bands import BandTable

log = logging.getLogger(__name__)


class Marker:
    """Keeps one cgroup's packets marked while the `Nft` it was given is open."""

    def __init__(self, nft: Nft, find: Callable[[], Cgroup], table: BandTable, index: int) -> None:
        self._nft = nft
        self._find = find
        self._table = table
        self._index = index
        self._mark: Mark | None = None

    def begin(self) -> Mark:
        """Mark the cgroup as it is now. Raises AgentError when that cannot be."""
        mark = Mark(self._find(), self._table, self._index)
        try:
            self._nft.run(mark.create())
        except NftError as error:
            raise AgentError(self._no_table(mark, error)) from error
        try:
            self._nft.run(mark.fill())
        except NftError as error:
            self._remove(mark)
            raise AgentError(
                f"nftables refused to match the sockets of {mark.cgroup.path} ({error}): "
                "it needs Linux 5.13 with CONFIG_NFT_SOCKET (module nft_socket) and nft 1.0"
            ) from error
        self._mark = mark
        return mark

    def look(self) -> None:
        """Follow the cgroup: gone, or another one under the same name. Raises as `begin`."""
        now = self._now()
        if self._mark is not None and now != self._mark.cgroup:
            log.warning("%s is gone: waiting for it to come back", self._mark.cgroup.path)
            self._remove(self._mark)
            self._mark = None
        if self._mark is None and now is not None:
            try:
                mark = self.begin()
            except AgentError:
                if self._now() == now:
                    raise
                return  # gone again
            log.warning("%s is back: %s", mark.cgroup.path, mark.describe())

    def _now(self) -> Cgroup | None:
        try:
            return self._find()
        except (AgentError, OSError):  # OSError: it went while we looked
            return None

    def _remove(self, mark: Mark) -> None:
        with suppress(NftError):  # nothing else may remove it, and then it is gone
            self._nft.run(mark.remove())

    def _no_table(self, mark: Mark, error: NftError) -> str:
        if self._nft.has(mark.name):
            return (
                f"{mark.cgroup.path} is marked already, by another `p3-agent mark` "
                f"(table inet {mark.name}): stop that one first"
            )
        return f"nftables refused to make the table {mark.name}: {error}"
