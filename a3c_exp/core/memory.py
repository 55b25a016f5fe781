"""A worker's memory of its own rollouts, from which its learner learns again."""

from __future__ import annotations

import os
import zipfile
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array, Bools, Floats
from a3c_exp.core.events import Episodes
from a3c_exp.core.experiment import Memory
from a3c_exp.core.normalization import Normalizer
from a3c_exp.core.rollout import Experience, Rollout
from a3c_exp.errors import one_line
from a3c_exp.networks.inputs import stacked_frames

Indices = NDArray[np.intp]

RowEntries = dict[tuple[int, int], Array]
"""Arrays that a few rows have besides, by their row and environment, in the order of the rows."""

MEMORY_MAX = Path("/sys/fs/cgroup/memory.max")

LEAST_PRIORITY = 0.01
"""Added to the size of an error, so that a transition without one is drawn too."""

KEPT_FIELDS = ("actions", "log_probs", "terminated", "truncated", "valid", "behaviour")
"""The fields of a rollout that a memory keeps as they are. The last may be None."""


def machine_bytes() -> int:
    """Return the memory that this process may use: the machine's, or its container's share."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # "max", or this is not Linux
        size = min(size, int(MEMORY_MAX.read_text()))
    return size


class Unseen(NamedTuple):
    """States that follow rows of a drawn rollout and are no rows of it: after its last rows, and
    after time limits.

    times, columns: positions [N] of the rows before them.
    observations: [N, ...], as the network takes them.
    states: recurrent states before them, float32 [N, S]; None for a network without one.
    """

    times: Indices
    columns: Indices
    observations: Array
    states: Floats | None


class _Sequence(NamedTuple):
    """A rollout in the memory. state: recurrent state at its first row, float32 [B, S]."""

    first: int
    length: int
    state: Floats | None


class Priorities:
    """Which transitions of a memory are drawn more often (Schaul et al. 2016, arXiv 1511.05952,
    section 3.3, by proportion).

        P(i) = p_i^alpha / sum_k p_k^alpha,  p_i = |e_i| + LEAST_PRIORITY
        w_i = (N P(i))^-beta, over the largest of the gradient

    with N transitions and e_i the error of transition i when it was drawn last. A new one has the
    largest p so far, so that it is drawn soon.

    alpha: the exponent.
    size, envs: of the rings.
    """

    def __init__(self, alpha: float, size: int, envs: int) -> None:
        self._alpha = alpha
        self._powers = np.zeros((size, envs))
        self._largest = 1.0
        self._drawn: tuple[Indices, Indices]  # positions in the rings

    def add(self, positions: Indices, valid: Bools) -> None:
        """Add transitions, where `valid` [N, B], at N positions of the rings."""
        self._powers[positions] = valid * self._largest

    def choose(self, rng: np.random.Generator, positions: Indices, count: int) -> Indices:
        """Return `count` numbers of transitions at N positions, [0, N B). Some may come twice."""
        powers = self._powers[positions].ravel()
        if not powers.any():  # none of them is a transition
            powers += 1
        sums = powers.cumsum()
        picks = np.sort(sums[:-1].searchsorted(rng.random(count) * sums[-1], side="right"))

        envs = self._powers.shape[1]
        self._drawn = positions[picks // envs], picks % envs
        return picks

    def update(self, errors: Floats, beta: float) -> Floats:
        """Take up the errors [1, N] of the N transitions that were drawn last, and return their
        weights."""
        powers = self._powers[self._drawn]
        weights: Floats = ((powers / powers.min()) ** -beta).astype(np.float32)

        updated = (np.abs(errors[0]) + LEAST_PRIORITY) ** self._alpha
        updated = np.nan_to_num(updated, nan=self._largest, posinf=self._largest)
        self._powers[self._drawn] = updated
        self._largest = max(self._largest, updated.max())
        return weights[None]


class RolloutMemory:
    """The last rollouts of one worker's B environments, as rows of rings.

    A row has a number for ever, counted from the first one. Rollouts follow one another without a
    gap, so the state after a row is that of the next row, unless an episode has ended.

    settings: of all workers' memories.
    workers, envs: number of workers, and of the environments of each.
    saved: the file of an earlier session, which is read once the first rollout shows the shapes;
        None: the memory begins empty.
    notice: what has to be said about it, or ""; at first, about its beginning.
    priorities: of transitions; None: all are drawn alike.
    """

    def __init__(
        self, settings: Memory, workers: int, envs: int, saved: Path | None = None, notice: str = ""
    ) -> None:
        self._settings = settings
        self._envs = envs
        self._rows = settings.capacity // (workers * envs)
        self._least = max(1, settings.min_size // (workers * envs))
        self._end = 0
        self._owed = 0.0
        self._last_length = 0
        self._has_left_out = False
        self._sequences: deque[_Sequence] = deque()
        self._next_state: Floats | None = None
        self._saved = saved
        self.notice = notice
        self.priorities: Priorities | None = None

    @property
    def _begin(self) -> int:
        """The oldest row that counts."""
        return max(0, self._end - self._rows)

    def __len__(self) -> int:
        """Return the number of rows of all environments together."""
        return (self._end - self._begin) * self._envs

    def add(self, rollout: Rollout) -> None:
        """Add a rollout, in the place of the oldest ones. One that is longer than the memory, a
        whole episode, is left out, and the first such one is said."""
        experience = rollout.experience
        assert experience is not None
        length = len(rollout.rewards)
        if length > self._rows:
            if not (self._has_left_out or self.notice):
                self._has_left_out = True
                self.notice = (
                    f"leaves an episode of {length:,} steps out of its memory: memory.capacity is "
                    f"{self._rows:,} steps of each environment"
                )
            return

        if not self._end:
            self._allocate(rollout, experience)

        first = self._end
        positions = (first + np.arange(length)) % self._size
        for name, column in _kept_columns(rollout, experience).items():
            self._rings[name][positions] = column
        if self.priorities is not None:
            self.priorities.add(positions, rollout.valid)
        self._observations.write(first, experience.observations)
        keys = [(first + time, env) for time, env in experience.finals.tolist()]
        self._finals.update(zip(keys, experience.final_observations, strict=True))
        if experience.final_states is not None:
            self._final_states.update(zip(keys, experience.final_states, strict=True))

        self._sequences.append(_Sequence(first, length, rollout.state))
        self._next_state = experience.next_state
        self._last_length = length
        self._end = first + length
        while self._sequences[0].first < self._begin:
            self._sequences.popleft()
        _drop_before(self._begin, self._finals)
        _drop_before(self._begin, self._final_states)

    def _allocate(self, rollout: Rollout, experience: Experience) -> None:
        """Make the rings, and read the file of an earlier session."""
        self._make_rings(rollout, experience)
        if self._saved is None:
            return
        try:
            self._load(self._saved)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            self._make_rings(rollout, experience)  # nothing of the file counts
            self.notice = f"begins with an empty memory: {self._saved.name}: {one_line(error)}"

    def _make_rings(self, rollout: Rollout, experience: Experience) -> None:
        space = experience.space
        kind = _Observations if stacked_frames(space) == 1 else _Stacks
        # the observation after the last row, and the older frames of the first one
        self._size = self._rows + stacked_frames(space)
        self._rings = {
            name: np.zeros((self._size, *array.shape[1:]), array.dtype)
            for name, array in _kept_columns(rollout, experience).items()
        }
        self._observations = kind(self._size, self._envs, space)
        if self._settings.priority:
            self.priorities = Priorities(self._settings.priority, self._size, self._envs)
        self._finals: RowEntries = {}
        self._final_states: RowEntries = {}
        self._next_state = experience.next_state

    def count_draws(self, rng: np.random.Generator) -> int:
        """Return how many gradients from memory follow the last rollout."""
        if self._end - self._begin < self._least:
            return 0
        if self._settings.draw == "poisson":
            return int(rng.poisson(self._settings.ratio))
        self._owed += self._settings.ratio
        draws = int(self._owed)
        self._owed -= draws
        return draws

    def draw(
        self, rng: np.random.Generator, normalizer: Normalizer | None, steps: int = 1
    ) -> tuple[Rollout, Unseen]:
        """Draw sequences or transitions. Without priorities no two of them are the same, and
        nothing is drawn if all are taken.

        normalizer: scales observations and rewards; None: they stay as they are.
        steps: rows of a transition, itself included. The others are no transitions of the rollout.

        Returns a rollout whose values are 0, and the states whose values it lacks.
        """
        if self._settings.sample == "transitions":
            steps = min(steps, self._end - self._begin)
            starts = self._end - steps + 1 - self._begin
            count = self._settings.batch_size or self._last_length * self._envs
            if self.priorities is None:
                picks = _choose(rng, starts * self._envs, count)
            else:
                positions = (self._begin + np.arange(starts)) % self._size
                picks = self.priorities.choose(rng, positions, count)
            firsts = self._begin + picks // self._envs
            lengths = np.full(len(picks), steps)
            rollout, unseen = self._take(firsts, lengths, picks % self._envs, None, normalizer)
            rollout.valid[1:] = False
            return replace(rollout, transitions=int(rollout.valid.sum())), unseen

        population = len(self._sequences) * self._envs
        picks = _choose(rng, population, self._settings.batch_size or self._envs)
        envs = picks % self._envs
        sequences = [self._sequences[number] for number in (picks // self._envs).tolist()]
        firsts = np.array([sequence.first for sequence in sequences])
        lengths = np.array([sequence.length for sequence in sequences])
        return self._take(firsts, lengths, envs, self._states(picks), normalizer)

    def _states(self, picks: Indices) -> tuple[Floats, Floats] | None:
        """Return the recurrent states [N, S] at the first row of sequences, and those after their
        last row; None for a network without one."""
        if self._next_state is None:
            return None
        before = []
        after = []
        for pick in picks.tolist():
            number, env = divmod(pick, self._envs)
            before.append(self._state(number)[env])
            after.append(self._state(number + 1)[env])
        return np.stack(before), np.stack(after)

    def _state(self, number: int) -> Floats:
        """Return the recurrent state [B, S] before a sequence, or after the last one."""
        is_last = number == len(self._sequences)
        state = self._next_state if is_last else self._sequences[number].state
        assert state is not None
        return state

    def _take(
        self,
        firsts: Indices,
        lengths: Indices,
        envs: Indices,
        states: tuple[Floats, Floats] | None,
        normalizer: Normalizer | None,
    ) -> tuple[Rollout, Unseen]:
        """Return N sequences side by side, given their first rows, lengths and environments. A
        shorter one is filled up with its last row, as rows that are no transitions.

        states: see `_states`.
        """
        times = np.arange(lengths.max())[:, None]
        rows = firsts + np.minimum(times, lengths - 1)
        columns: dict[str, Any] = {
            name: ring[rows % self._size, envs] for name, ring in self._rings.items()
        }
        columns["valid"] &= times < lengths
        rewards = columns.pop("rewards")
        observations = self._observations.read(rows, envs)

        ended = columns["terminated"] | columns["truncated"]
        cut = columns["truncated"] & ~columns["terminated"] & (times < lengths)
        unseen = self._unseen(
            rows, envs, np.nonzero(~ended & (times == lengths - 1)), np.nonzero(cut), states
        )
        if normalizer is not None:
            rewards = normalizer.rewards(rewards, np.zeros(3))
            observations = normalizer.observations(observations)
            unseen = unseen._replace(observations=normalizer.observations(unseen.observations))

        rollout = Rollout(
            **columns,
            observations=observations,
            rewards=rewards,
            values=np.zeros_like(rewards),
            next_values=np.zeros_like(rewards),
            version=0,
            state=None if states is None else states[0],
            episodes=Episodes(),
            transitions=int(np.count_nonzero(columns["valid"])),
            stats=None,
            from_memory=True,
        )
        return rollout, unseen

    def _unseen(
        self,
        rows: Indices,
        envs: Indices,
        last: tuple[Indices, ...],
        cut: tuple[Indices, ...],
        states: tuple[Floats, Floats] | None,
    ) -> Unseen:
        """Return the states after rows [T, N] of environments [N].

        last, cut: positions of rows that the next row follows, and of those that a time limit
            follows.
        """
        keys = list(zip(rows[cut].tolist(), envs[cut[1]].tolist(), strict=True))
        following = self._observations.read(rows[last] + 1, envs[last[1]])
        finals = [self._finals[key][None] for key in keys]
        after = None
        if states is not None:
            final_states = [self._final_states[key][None] for key in keys]
            after = np.concatenate([states[1][last[1]], *final_states])
        times, columns = np.concatenate([last, cut], axis=1)
        return Unseen(times, columns, np.concatenate([following, *finals]), after)

    # -- files

    def save(self, path: Path) -> None:
        """Write the memory into a file. One that a kill has cut short is refused by `_load`."""
        if not self._end:
            return
        content = {
            **self._rings,
            **self._observations.rings,
            "end": np.array(self._end),
            "sequences": np.array([sequence[:2] for sequence in self._sequences]),
        }
        if self._next_state is not None:
            numbers = range(len(self._sequences) + 1)
            content["states"] = np.stack([self._state(number) for number in numbers])
        for name, entries in self._entries().items():
            if entries:
                content[f"{name}_keys"] = np.array(list(entries))
                content[name] = np.stack(list(entries.values()))
        np.savez(path, allow_pickle=False, **content)

    def _entries(self) -> dict[str, RowEntries]:
        """Return what a few rows have besides, by its name in a file."""
        return {
            "finals": self._finals,
            "final_states": self._final_states,
            "whole": self._observations.whole,
        }

    def _load(self, path: Path) -> None:
        """Read what `save` has written. Where a session has ended, a time limit ends the episodes:
        the environments begin anew.

        Raises OSError, KeyError, ValueError or BadZipFile for a file that is missing, damaged or of
        a memory of another size.
        """
        with np.load(path, allow_pickle=False) as file:
            content = dict(file)
        if ("states" in content) != (self._next_state is not None):
            raise ValueError("of another network")

        for rings in (self._rings, self._observations.rings):
            for name, ring in rings.items():
                saved = content[name]
                if (saved.shape, saved.dtype) != (ring.shape, ring.dtype):
                    raise ValueError(f"{saved.dtype} {saved.shape}, not {ring.dtype} {ring.shape}")
                rings[name] = saved
        end = int(content["end"])
        table = content["sequences"].tolist()
        states = content.get("states", [None] * (len(table) + 1))
        for name, entries in self._entries().items():
            if name in content:
                keys = map(tuple, content[f"{name}_keys"].tolist())
                entries.update(zip(keys, content[name], strict=True))

        if self.priorities is not None:  # files have none
            self.priorities.add(np.arange(self._size), self._rings["valid"])

        last = (end - 1) % self._size
        going_on = ~(self._rings["terminated"][last] | self._rings["truncated"][last])
        self._rings["truncated"][last] |= going_on
        following = self._observations.read(np.full(self._envs, end), np.arange(self._envs))
        for env in np.flatnonzero(going_on).tolist():
            self._finals[end - 1, env] = following[env]
            if self._next_state is not None:
                self._final_states[end - 1, env] = states[-1][env]

        self._sequences.extend(
            _Sequence(first, length, state)
            for (first, length), state in zip(table, states[:-1], strict=True)
        )
        self._end = end


def _kept_columns(rollout: Rollout, experience: Experience) -> dict[str, Array]:
    """Return what the memory keeps for each row."""
    columns = {name: getattr(rollout, name) for name in KEPT_FIELDS}
    columns["rewards"] = experience.rewards
    return {name: column for name, column in columns.items() if column is not None}


def _choose(rng: np.random.Generator, population: int, count: int) -> Indices:
    """Return `count` different numbers below `population` in ascending order, or all of them."""
    if count >= population:
        return np.arange(population)
    return np.sort(rng.choice(population, count, replace=False, shuffle=False))


def _drop_before(row: int, entries: RowEntries) -> None:
    """Delete the entries of rows before this one."""
    while entries and (key := next(iter(entries)))[0] < row:
        del entries[key]


# -- observations


class _Observations:
    """Observations of rows, as they are.

    rings, whole: for a file.
    """

    def __init__(self, size: int, envs: int, space: Box) -> None:
        self._size = size
        self.rings = {"observations": np.zeros((size, envs, *space.shape), space.dtype)}
        self.whole: RowEntries = {}

    def write(self, first: int, observations: Array) -> None:
        """Write observations [N, B, ...] of rows from `first` on."""
        positions = (first + np.arange(len(observations))) % self._size
        self.rings["observations"][positions] = observations

    def read(self, rows: Indices, envs: Indices) -> Array:
        """Return observations [..., *shape] of rows [...] of environments [...]."""
        stored: Array = self.rings["observations"][rows % self._size, envs]
        return stored


class _Stacks:
    """Stacks of frames, of which each row keeps the newest.

    The older frames are those of the rows before. A row that has others, such as the first ones of
    an episode, is also kept whole.

    rings, whole: for a file.
    """

    def __init__(self, size: int, envs: int, space: Box) -> None:
        self._size = size
        depth, *frame = space.shape
        self._older = np.arange(depth - 1, -1, -1)
        self.rings = {
            "frames": np.zeros((size, envs, *frame), np.uint8),
            "is_whole": np.zeros((size, envs), np.bool_),
        }
        self.whole: RowEntries = {}

    def write(self, first: int, observations: Array) -> None:
        """Write observations [N, B, ...] of rows from `first` on."""
        length, count = observations.shape[:2]
        rows = first + np.arange(length)
        self.rings["frames"][rows % self._size] = observations[:, :, -1]

        stacks = self._stacks(rows[:, None], np.arange(count))
        is_whole = (stacks != observations).any(tuple(range(2, observations.ndim)))
        self.rings["is_whole"][rows % self._size] = is_whole
        for time, env in np.argwhere(is_whole).tolist():
            self.whole[first + time, env] = observations[time, env].copy()
        _drop_before(first + length - self._size, self.whole)

    def read(self, rows: Indices, envs: Indices) -> Array:
        """Return observations [..., *shape] of rows [...] of environments [...]."""
        rows, envs = np.broadcast_arrays(rows, envs)
        stacks = self._stacks(rows, envs)
        is_whole = self.rings["is_whole"][rows % self._size, envs]
        for index in zip(*np.nonzero(is_whole), strict=True):
            stacks[index] = self.whole[int(rows[index]), int(envs[index])]
        return stacks

    def _stacks(self, rows: Indices, envs: Indices) -> Array:
        """Return the frames of rows and of those before them."""
        positions = (rows[..., None] - self._older) % self._size
        stacks: Array = self.rings["frames"][positions, envs[..., None]]
        return stacks
