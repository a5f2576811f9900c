"""Places for streams of one kind: so many on a node, and a part of them at most for one caller.

Owns: the count, and that no caller takes the places of all the others. Leaves to others: what the streams are told, and
under which names a caller is counted (`server.watching`). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from gagent_grpc.errors import ResourceExhausted

SHARE = 4
"""Part of the places that one caller may have; at least one place."""


class Places:
    """The places of one node for streams of one kind."""

    def __init__(self, most: int, what: str, setting: str) -> None:
        """Make so many places.

        Args:
            most: Places for all callers together.
            what: What a stream does, in the plural, as a refusal says it: "streams that watch the traffic".
            setting: Name of the limit.
        """
        self._most = most
        self._per_caller = max(1, most // SHARE)
        self._what = what
        self._setting = setting
        self._taken = 0
        self._taken_by: dict[str, int] = {}
        """By name of a caller; one without any is not in it."""

    @property
    def taken(self) -> int:
        """Places that are taken."""
        return self._taken

    def take(self, caller: Sequence[str] = ()) -> None:
        """Take a place; whoever takes it gives it back with `leave`.

        Args:
            caller: Names under which the caller is counted, such as its agent and its connection; each of them has its
                part. Without a name only the bound on all together holds.

        Raises:
            ResourceExhausted: All are taken, or as many as one caller may have; the text says which.
        """
        if self._taken >= self._most:
            raise ResourceExhausted(
                f"there are {self._taken:,} {self._what}, the limit of this node ({self._setting}); try again later"
            )
        for name in caller:
            if self._taken_by.get(name, 0) >= self._per_caller:
                raise ResourceExhausted(
                    f"{name} has {self._taken_by[name]:,} {self._what}, the limit for one caller: a part of the "
                    f"{self._most:,} of this node ({self._setting}); end one of them"
                )
        self._taken += 1
        for name in caller:
            self._taken_by[name] = self._taken_by.get(name, 0) + 1

    def leave(self, caller: Sequence[str] = ()) -> None:
        """Give back a place that was taken under the same names."""
        self._taken -= 1
        for name in caller:
            self._taken_by[name] -= 1
            if not self._taken_by[name]:
                del self._taken_by[name]
