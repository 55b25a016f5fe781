"""Members of synchronous rounds with a quorum, where several servers share the parameters."""

from __future__ import annotations

from collections.abc import Mapping

Members = Mapping[int, int]
"""Workers that are in a round, each with the sequence number of the message that has its gradient."""


class Membership:
    """Members of the last rounds, by the index of the round.

    The first server lets gradients into rounds, in the order in which they come, and all servers follow it: a worker
    sends its gradient to the others once the first has answered, with the members of all rounds that they may not know.

    kept: number of rounds. Each worker keeps at most one round open on a server, so few more than workers will do.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._rounds: dict[int, dict[int, int]] = {}

    def add(self, round: int, members: Members) -> None:
        """Let messages into a round. One takes the place of that which its worker's predecessor has sent."""
        self._rounds.setdefault(round, {}).update(members)
        self._rounds.pop(round - self._kept, None)

    def between(self, known: int, completed: int) -> dict[int, Members]:
        """The members of the rounds after `known` that are over, given how many are."""
        return {round: dict(members) for round, members in self._rounds.items() if known < round <= completed}

    def is_complete(self, round: int, taken: Mapping[int, int]) -> bool:
        """Return whether no member's message is still to come. False for a round that nothing is known about.

        taken: by worker, the sequence number of its last message; of one that has died, of the last it can have sent.
        """
        members = self._rounds.get(round)
        return members is not None and all(taken.get(worker, 0) >= sequence for worker, sequence in members.items())

    def clear(self) -> None:
        """Forget all rounds."""
        self._rounds.clear()
