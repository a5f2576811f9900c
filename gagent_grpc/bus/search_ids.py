"""Searches that were made: one that comes a second time, by its search-id, goes in a circle (FIPA SC00023 §6.1.4).

Owns: that memory, bounded in time and in number. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from gagent_grpc.errors import SearchRepeated, UnrecognisedParameterValue

AGE = 300.0
"""Seconds that the id of a search is remembered."""
_MOST = 10_000
"""Ids that are remembered at most; beyond that the oldest one is forgotten."""
_MAX_CHARS = 256


class SearchIds:
    """The ids of the searches of one directory."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def note(self, search_id: str, now: float) -> None:
        """Remember a search at ``now``, in seconds of a clock that only goes forward; "" is none.

        Raises:
            SearchRepeated: It was made before, within five minutes.
            UnrecognisedParameterValue: The id is too long.
        """
        if not search_id:
            return
        if len(search_id) > _MAX_CHARS:
            why = f"has {len(search_id):,} characters; expected at most {_MAX_CHARS}"
            raise UnrecognisedParameterValue("search-constraints", "search-id", why)
        while self._seen:
            oldest, noted_at = next(iter(self._seen.items()))
            if now - noted_at < AGE and len(self._seen) < _MOST:
                break
            del self._seen[oldest]
        if search_id in self._seen:
            raise SearchRepeated(search_id)
        self._seen[search_id] = now
