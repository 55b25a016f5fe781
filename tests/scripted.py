"""Environments for tests, registered with gymnasium by importing this module
('scripted:Scripted-v0').

Every observation of Scripted-v0 identifies its episode and step, so that a test can prove the order
of transitions, how episodes ended, and which observation was the last. The others can be learned in
seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from tempfile import NamedTemporaryFile
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import make_vec
from gymnasium.spaces import Box, Discrete, Space
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorWrapper
from numpy.typing import NDArray

from a3c_exp.common.arrays import Array
from a3c_exp.envs import EnvBatch, Step

Observation = NDArray[np.float32]
Image = NDArray[np.uint8]
Answer = tuple[Any, float, bool, bool, dict[str, Any]]
End = Literal["terminated", "truncated", "both"]


class Scripted(gymnasium.Env[Observation, np.int64]):
    """Episodes of known length and end, every step of which has another observation.

    Observation: [name, episode, step, last action], where the name is the seed of the last seeded
    reset (0 if there
    was none), and episodes count from it. The last action is -1 at step 0.
    Reward: `reward(episode, step, action)`, so that it too identifies its step.
    lengths, ends: of the episodes, in turn and from the start again. An environment with the name 2
        begins with the third, so that episodes of different seeds end at different times. A length
        of 0 never ends.
    infos: of the episodes, in turn like their lengths, each with the number of the step as
        `moment`; none by default.
    fails_at, failure: after so many steps in all, raise; give rewards so large that
        gradients are not finite.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 - as gymnasium declares it

    def __init__(
        self,
        lengths: Sequence[int] = (3,),
        ends: Sequence[End] = ("terminated",),
        actions: int = 2,
        infos: Sequence[dict[str, Any]] = (),
        fails_at: int | None = None,
        failure: Literal["raise", "huge"] = "raise",
        render_mode: str | None = None,
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = Discrete(actions)
        self.lengths = tuple(lengths)
        self.ends = tuple(ends)
        self.infos = tuple(infos)
        self.fails_at = fails_at
        self.failure = failure
        self.render_mode = render_mode
        self.name = self.moment = self.taken = 0
        self.episode = -1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.name = seed
            self.episode = -1
        self.episode += 1
        self.moment = 0
        return self._observation(-1), {}

    def step(self, action: Any) -> Answer:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.moment += 1
        self.taken += 1
        reward = self.reward(self.episode, self.moment, int(action))
        if self.fails_at is not None and self.taken >= self.fails_at:
            reward = self._fail()
        turn = self.name + self.episode
        end = self.ends[turn % len(self.ends)]
        over = self.moment == self.lengths[turn % len(self.lengths)]
        terminated = over and end != "truncated"
        truncated = over and end != "terminated"
        info = {**self.infos[turn % len(self.infos)], "moment": self.moment} if self.infos else {}
        return self._observation(int(action)), reward, terminated, truncated, info

    @staticmethod
    def reward(episode: int, step: int, action: int) -> float:
        """The reward of the `step`-th step (from 1) of an episode: exact in float32, and different
        for each of them."""
        return 100.0 * episode + step + action / 8

    def render(self) -> Any:
        return np.full((4, 6, 3), self.moment, np.uint8)

    def _observation(self, action: int) -> Observation:
        return np.array([self.name, self.episode, self.moment, action], np.float32)

    def _fail(self) -> float:
        if self.failure == "raise":
            raise RuntimeError(f"scripted to fail after {self.fails_at} steps")
        return 3e38


def vector(
    num_envs: int, autoreset_mode: str = "NextStep", dense: bool = False, **kwargs: Any
) -> SyncVectorEnv:
    """Scripted-v0 as a vector environment with any autoreset mode, in place of a native one.

    dense: give final observations as one float array, 0 in rows without an end, as ALE does.
    """
    kind = DenseVector if dense else SyncVectorEnv
    return kind(
        [lambda: Scripted(**kwargs)] * num_envs, autoreset_mode=AutoresetMode(autoreset_mode)
    )


class DenseVector(SyncVectorEnv):
    """A vector environment whose `final_obs` is one array [K, ...]."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(actions)
        if "final_obs" in info:
            rows = [np.zeros(4, np.float32) if row is None else row for row in info["final_obs"]]
            info["final_obs"] = np.stack(rows)
        return obs, reward, terminated, truncated, info


class Asking(gymnasium.Env[Any, Any]):
    """Asks `length` questions that have nothing to do with one another, then the episode
    terminates."""

    def __init__(self, observations: Space[Any], actions: Space[Any], length: int) -> None:
        self.observation_space = observations
        self.action_space = actions
        self.length = length
        self.answered = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.answered = 0
        return self.ask(), {}

    def step(self, action: Any) -> Answer:
        reward = self.pay(action)
        self.answered += 1
        return self.ask(), reward, self.answered == self.length, False, {}

    def ask(self) -> Any:
        """The next observation."""
        raise NotImplementedError

    def pay(self, action: Any) -> float:
        """The reward of an answer to the last question."""
        raise NotImplementedError


class Bandit(Asking):
    """A lever for each light: the observation is one lit lamp out of n, its lever pays 1, every
    other 0.

    A perfect policy returns `length`, a random one `length` / n.
    """

    def __init__(self, n: int = 4, length: int = 1) -> None:
        super().__init__(Box(0.0, 1.0, (n,), np.float32), Discrete(n), length)
        self.n = n

    def ask(self) -> Observation:
        self.light = int(self.np_random.integers(self.n))
        lamps: Observation = np.eye(self.n, dtype=np.float32)[self.light]
        return lamps

    def pay(self, action: Any) -> float:
        return float(action == self.light)


class Corridor(gymnasium.Env[np.int64, np.int64]):
    """Walk right through n places: the last one pays 1 and ends the episode, every step before it
    costs 0.01.

    The observation is the place (a Discrete space), the actions are left and right. A perfect
    policy returns
    1 - 0.01 (n - 2); registered with a time limit, which a policy that walks left runs into.
    """

    def __init__(self, n: int = 6) -> None:
        self.observation_space = Discrete(n)
        self.action_space = Discrete(2)
        self.n = n
        self.place = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return np.int64(self.place), {}

    def step(self, action: Any) -> Answer:
        self.place = max(0, self.place + (1 if action == 1 else -1))
        arrived = self.place == self.n - 1
        return np.int64(self.place), 1.0 if arrived else -0.01, arrived, False, {}


class Target(Asking):
    """Repeat the number that is shown: one observation in [-1, 1], one action in [-1, 1], minus
    their squared distance.

    A perfect policy returns 0, one that always answers 0 about -`length` / 3.
    """

    def __init__(self, length: int = 1) -> None:
        super().__init__(Box(-1.0, 1.0, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32), length)

    def ask(self) -> Observation:
        self.shown = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.shown.copy()

    def pay(self, action: Any) -> float:
        return -float(np.square(action - self.shown).sum())


class Corners(Asking):
    """A bright square in one of four corners of a dim, noisy image in colour; the lever of that
    corner pays 1.

    A perfect policy returns `length`, a random one `length` / 4.
    """

    def __init__(self, size: int = 12, length: int = 1) -> None:
        super().__init__(Box(0, 255, (size, size, 3), np.uint8), Discrete(4), length)
        self.size = size

    def ask(self) -> Image:
        self.corner = int(self.np_random.integers(4))
        image = self.np_random.integers(0, 100, (self.size, self.size, 3)).astype(np.uint8)
        down, right = divmod(self.corner, 2)
        half = self.size // 2
        row, column = self.np_random.integers(0, half - 2, 2) + half * np.array([down, right])
        image[row : row + 3, column : column + 3] = 255
        return image

    def pay(self, action: Any) -> float:
        return float(action == self.corner)


class Echo(gymnasium.Env[Any, Any]):
    """Always returns the same observation, and keeps the actions that it receives."""

    def __init__(self, observations: Space[Any], actions: Space[Any], observation: Any) -> None:
        self.observation_space = observations
        self.action_space = actions
        self.observation = observation
        self.received: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(
            action if isinstance(action, int) else np.asarray(action)
        ), action
        self.received.append(action)
        return self.observation, 0.0, False, False, {}


class GlobalDraws(Bandit):
    """Draws from the global generators of Python and numpy, and notes the first draws of each copy
    in a new file."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self.notes: str | None = notes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        if self.notes is not None:
            with NamedTemporaryFile("w", dir=self.notes, delete=False) as file:
                file.write(f"{random.random()} {np.random.random()}")  # noqa: NPY002
            self.notes = None
        return observation, info


class Drawing(Bandit):
    """A bandit whose rewards are drawn from Python's global generator."""

    def step(self, action: Any) -> Answer:
        observation, reward, *rest = super().step(action)
        return (observation, reward + random.random(), *rest)


class Changed:
    """A batch of a user's own around another one, which changes its steps."""

    def __init__(self, env: EnvBatch, change: Callable[[Step], Step]) -> None:
        self._env = env
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, actions: Array) -> Step:
        return self._change(self._env.step(actions))


gymnasium.register(
    "Scripted-v0", entry_point="scripted:Scripted", vector_entry_point="scripted:vector"
)
gymnasium.register("Bandit-v0", entry_point="scripted:Bandit")
gymnasium.register("Corridor-v0", entry_point="scripted:Corridor", max_episode_steps=50)
gymnasium.register("Target-v0", entry_point="scripted:Target")
gymnasium.register("Corners-v0", entry_point="scripted:Corners")
gymnasium.register("Echo-v0", entry_point="scripted:Echo")
gymnasium.register("GlobalDraws-v0", entry_point="scripted:GlobalDraws")
gymnasium.register("Drawing-v0", entry_point="scripted:Drawing")


def engine(name: str, num_envs: int, seed: int, **kwargs: Any) -> Any:
    """An engine, see `Gym.engine`: gymnasium's vector environment, which gets its seed in the first
    reset."""

    class Seeded(VectorWrapper):
        first: int | None = seed

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            seed, self.first = self.first, None
            return self.env.reset(seed=seed, options=options)

    return Seeded(
        make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)
    )
