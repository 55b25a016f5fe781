"""A worker's memory of its rollouts: what is drawn from it, and what a learner makes of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from policies import FixedPolicy
from refusals import refused
from runs import BANDIT, CORRIDOR, SCRIPTED, TARGET, config, train, train_config
from test_restarts import ended, faulty, replaced
from workers import LSTM, by_descent, events_of

from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.experiment import Memory
from a3c_exp.core.memory import RolloutMemory, machine_bytes
from a3c_exp.core.normalization import NormalizedObservations, Normalizer, measure_stats
from a3c_exp.core.rollout import Actor, Experience, Rollout
from a3c_exp.core.store import Snapshot
from a3c_exp.envs import Gym
from a3c_exp.networks.inputs import stacked_frames
from a3c_exp.networks.recurrent import RecurrentInput

VTRACE: dict[str, Any] = {"returns": {"_target_": "a3c_exp.returns.VTrace"}}
START = Snapshot(version=0, steps=0, normalizer=None)
ENDS: dict[str, Any] = {"lengths": (4, 3, 5, 2), "ends": ("terminated", "truncated")}


def make_actor(envs: int, length: Any = 5, *, vectorized: bool = False) -> Actor:
    """An actor whose observations name their environment, episode and step."""
    game = Gym(id=SCRIPTED, kwargs=ENDS, vectorized=vectorized)
    policy = ActingPolicy(FixedPolicy(lambda step: step % 2), np.random.default_rng(0))
    batch = game.make(envs, list(range(envs)))
    return Actor(batch, policy, game, rollout_length=length, gamma=0.9, remembers=True)


def make_memory(capacity: int, envs: int = 1, **settings: Any) -> RolloutMemory:
    return RolloutMemory(Memory(capacity=capacity, **settings), workers=1, envs=envs)


# -- what is drawn
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("envs", "vectorized"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_transition_is_followed_by_what_followed_it(
    steps: int, envs: int, vectorized: bool
) -> None:
    """Through rollouts' borders, around the ring, and with the last states of episodes that a time
    limit has cut."""
    actor = make_actor(envs, vectorized=vectorized)
    memory = make_memory(20 * envs, envs, sample="transitions", batch_size=10)
    rng = np.random.default_rng(1)
    unseen_states = 0
    for _ in range(40):
        memory.add(actor.collect(START))
        drawn, unseen = memory.draw(rng, None, steps)
        assert not drawn.valid[1:].any(), "only the first row of each is a transition"
        assert len({tuple(row) for row in drawn.observations[0, :, :3]}) == len(drawn.valid[0])

        after = {
            (int(time), int(column)): observation
            for time, column, observation in zip(
                unseen.times, unseen.columns, unseen.observations, strict=True
            )
        }
        for column in np.flatnonzero(drawn.valid[0]).tolist():
            for time in range(len(drawn.rewards)):
                name, episode, moment, _ = drawn.observations[time, column]
                action = drawn.actions[time, column]
                assert drawn.rewards[time, column] == 100 * episode + moment + 1 + action / 8
                following = after.get((time, column))
                if drawn.terminated[time, column]:
                    assert following is None
                    break
                if following is None:
                    following = drawn.observations[time + 1, column]
                else:
                    unseen_states += 1
                assert following.tolist() == [name, episode, moment + 1, action]
                if drawn.truncated[time, column]:
                    break
    assert unseen_states > 50


@pytest.mark.parametrize("length", [5, "episode"])
def test_a_sequence_is_a_whole_rollout(length: Any) -> None:
    actor = make_actor(1, length)
    memory = make_memory(30, batch_size=4)
    rollouts = []
    rng = np.random.default_rng(1)
    for _ in range(20):
        rollouts.append(actor.collect(START))
        memory.add(rollouts[-1])
        drawn, unseen = memory.draw(rng, None)
        assert drawn.from_memory
        for column in range(drawn.rewards.shape[1]):
            rows = drawn.valid[:, column]
            [whole] = [
                rollout
                for rollout in rollouts
                if np.array_equal(rollout.observations[:, 0], drawn.observations[rows, column])
            ]
            assert np.array_equal(whole.rewards[:, 0], drawn.rewards[rows, column])
            is_open = not (whole.terminated[-1, 0])
            assert is_open == (column in unseen.columns)


def test_the_oldest_rollouts_make_room() -> None:
    actor = make_actor(2)
    memory = make_memory(20, 2)
    for _ in range(6):
        memory.add(actor.collect(START))
        assert len(memory) <= 20
    rollouts = [actor.collect(START) for _ in range(2)]
    for rollout in rollouts:
        memory.add(rollout)
    drawn, _ = memory.draw(np.random.default_rng(0), None)
    seen = {row.tobytes() for rollout in rollouts for row in rollout.observations.reshape(-1, 4)}
    assert {row.tobytes() for row in drawn.observations.reshape(-1, 4)} <= seen


def stacked_rollout(rng: np.random.Generator, first: Array, ended: Array) -> Rollout:
    """A rollout of stacks of 4 frames of 2 x 3 pixels. ended: bool [T, B], after which a stack of
    its own follows."""
    length, envs = ended.shape
    stacks = [first]
    for row in ended:
        frames = rng.integers(0, 256, (envs, 1, 2, 3), np.uint8)
        moved = np.concatenate([stacks[-1][:, 1:], frames], axis=1)
        other = rng.integers(0, 256, moved.shape, np.uint8)
        stacks.append(np.where(row[:, None, None, None], other, moved))
    observations = np.stack(stacks)
    rollout = make_actor(envs, length).collect(START)
    experience = Experience(
        space=Box(0, 255, (4, 2, 3), np.uint8),
        observations=observations,
        rewards=rollout.rewards,
        finals=np.empty((0, 2), np.int64),
        final_observations=[],
        next_state=None,
        final_states=None,
    )
    nothing = np.zeros_like(ended)
    return replace(
        rollout,
        observations=observations[:-1],
        terminated=ended,
        truncated=nothing,
        valid=~nothing,
        experience=experience,
    )


def test_stacks_of_frames_are_what_they_were() -> None:
    """Also where episodes begin, one after another, and around the ring."""
    rng = np.random.default_rng(0)
    memory = make_memory(40, 2, sample="transitions", batch_size=100)
    rollouts: list[Rollout] = []
    latest = rng.integers(0, 256, (2, 4, 2, 3), np.uint8)
    for _ in range(12):
        rollouts.append(stacked_rollout(rng, latest, rng.random((5, 2)) < 0.2))
        assert rollouts[-1].experience is not None
        latest = rollouts[-1].experience.observations[-1]
        memory.add(rollouts[-1])
    drawn, unseen = memory.draw(rng, None)
    expected = np.concatenate([rollout.observations for rollout in rollouts[-4:]])
    # all 40 are drawn, in the order of their rows
    assert np.array_equal(drawn.observations[0], expected.reshape(40, 4, 2, 3))
    following = np.concatenate([expected[1:], latest[None]]).reshape(40, 4, 2, 3)
    assert np.array_equal(unseen.observations, following[unseen.columns])
    assert len(unseen.columns) == np.count_nonzero(~drawn.terminated)


def test_stacks_of_frames_that_were_saved_are_what_they_were(tmp_path: Path) -> None:
    """Those of other episodes follow them, which begin with the next session."""
    rng = np.random.default_rng(0)
    path = tmp_path / "memory_0.npz"
    settings: dict[str, Any] = {"sample": "transitions", "batch_size": 100}
    saved = make_memory(40, 2, **settings)
    going_on = np.zeros((5, 2), np.bool_)
    stacks = []
    for first in rng.integers(0, 256, (2, 2, 4, 2, 3), np.uint8):
        rollout = stacked_rollout(rng, first, going_on)
        assert rollout.experience is not None
        stacks.append(rollout.experience.observations)
        if len(stacks) == 1:
            saved.add(rollout)
            saved.save(path)
    memory = RolloutMemory(Memory(capacity=40, **settings), 1, 2, saved=path)
    memory.add(rollout)

    drawn, unseen = memory.draw(rng, None)
    assert not memory.notice
    expected = np.concatenate([observations[:-1] for observations in stacks])
    assert np.array_equal(drawn.observations[0], expected.reshape(20, 4, 2, 3))
    following = np.concatenate([observations[1:] for observations in stacks])
    assert np.array_equal(
        unseen.observations[np.argsort(unseen.columns)], following.reshape(20, 4, 2, 3)
    )


def test_a_million_game_frames_fit_into_7_5_gigabytes() -> None:
    network = load_network(BANDIT)
    space = Box(0, 255, (4, 84, 84), np.uint8)
    assert Memory(capacity=1_000_000).nbytes(space, network) < 7.5e9
    memory = make_memory(1000, 2)
    rng = np.random.default_rng(0)
    memory.add(
        stacked_rollout(rng, rng.integers(0, 256, (2, 4, 2, 3), np.uint8), np.zeros((9, 2), bool))
    )
    arrays = [*memory._rings.values(), *memory._observations.rings.values()]
    assert sum(array.nbytes for array in arrays) < 1000 * (2 * 3 + 40)


@pytest.mark.parametrize("env", [BANDIT, TARGET])
def test_the_bytes_of_a_memory_are_those_of_its_rings(env: str) -> None:
    _, [worker] = by_descent(env, memory={"capacity": 10_000}, **VTRACE)
    memory = worker._learner.memory
    assert memory is not None
    memory.add(worker._actor.collect(worker._learner.pull()))
    arrays = [*memory._rings.values(), *memory._observations.rings.values()]
    space = worker._actor.env.observation_space
    expected = memory._settings.nbytes(space, worker._network)
    assert sum(array.nbytes for array in arrays) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "frames"), [((3, 8, 8), 1), ((8, 8, 3), 1), ((4, 8, 8), 4), ((3, 8, 8, 3), 3)]
)
def test_the_colors_of_an_image_are_no_stack(shape: tuple[int, ...], frames: int) -> None:
    assert stacked_frames(Box(0, 255, shape, np.uint8)) == frames


def load_network(env: str) -> Any:
    return by_descent(env)[1][0]._network


def test_observations_and_rewards_are_scaled_as_they_are_today() -> None:
    actor = make_actor(2)
    rollout = actor.collect(START)
    memory = make_memory(10, 2)
    memory.add(rollout)
    stats = measure_stats(np.arange(40.0).reshape(10, 4), np.arange(10.0))
    form = NormalizedObservations(measured=True, shape=(4,))
    normalizer = Normalizer.from_row(stats, form, True)
    drawn, unseen = memory.draw(np.random.default_rng(0), normalizer)
    assert np.array_equal(drawn.observations, normalizer.observations(rollout.observations))
    assert np.array_equal(drawn.rewards, normalizer.rewards(rollout.rewards, np.zeros(3)))
    assert (unseen.observations <= 10).all()


def test_sequences_begin_with_the_recurrent_state_of_the_actor() -> None:
    _, [worker] = by_descent(CORRIDOR, network=LSTM, memory={"capacity": 48}, **VTRACE)
    actor = worker._actor
    memory = worker._learner.memory
    assert memory is not None
    snapshot = worker._learner.pull()
    rollouts = [actor.collect(snapshot) for _ in range(3)]
    for rollout in rollouts:
        memory.add(rollout)
    drawn, unseen = memory.draw(np.random.default_rng(0), None)
    states = [np.asarray(rollout.state) for rollout in rollouts]
    assert drawn.state is not None and unseen.states is not None
    for column, state in enumerate(drawn.state):
        number = next(n for n, before in enumerate(states) if state in before)
        expected = [*states[1:], np.asarray(actor._state)][number]
        for place in np.flatnonzero(unseen.columns == column):
            assert unseen.states[place] in expected
    assert isinstance(drawn.recurrent_input, RecurrentInput)


@pytest.mark.parametrize("ratio", [0, 0.5, 1, 2.25])
def test_fixed_draws_have_the_ratio_at_every_moment(ratio: float) -> None:
    memory = make_memory(20, ratio=ratio)
    actor = make_actor(1)
    rng = np.random.default_rng(0)
    draws = 0
    for number in range(1, 17):
        memory.add(actor.collect(START))
        draws += memory.count_draws(rng)
        assert draws == int(ratio * number)


def test_poisson_draws_have_the_ratio_as_their_mean() -> None:
    memory = make_memory(20, ratio=1.5, draw="poisson")
    memory.add(make_actor(1).collect(START))
    rng = np.random.default_rng(0)
    draws = [memory.count_draws(rng) for _ in range(4000)]
    assert np.mean(draws) == pytest.approx(1.5, abs=0.1)
    assert np.var(draws) == pytest.approx(1.5, abs=0.15)


def test_nothing_is_learned_from_it_before_it_has_min_size() -> None:
    memory = make_memory(100, min_size=12, ratio=1)
    actor = make_actor(1)
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(4):
        memory.add(actor.collect(START))
        draws.append((len(memory), memory.count_draws(rng)))
    assert [count for size, count in draws] == [int(size >= 12) for size, count in draws]


# -- the learner
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_memory_of_one_rollout_gives_a_second_update_on_it(network: str) -> None:
    """The learner's values take the place of those with which the actor acted, of states after the
    rollout too."""
    settings: dict[str, Any] = {"network": LSTM} if network == "lstm" else {}
    settings |= {"env__max_episode_steps": 5, "optimizer__learning_rate": 0.3} | VTRACE
    remembering = {"memory": {"capacity": 16, "ratio": 1}}
    store, [worker] = by_descent(CORRIDOR, **settings, **remembering)
    plain_store, [plain] = by_descent(CORRIDOR, **settings)

    for _ in range(4):
        learner, other = worker._learner, plain._learner
        snapshot = learner.pull()
        other.pull()
        rollout = worker._actor.collect(snapshot)
        assert len(list(learner.learn(rollout, snapshot))) == 4  # two pauses, two events

        [_, _] = other.learn(rollout, other.pull())
        again = other.pull()
        assert rollout.experience is not None
        valued = rollout.next_values.copy()
        last = ~(rollout.terminated[-1] | rollout.truncated[-1])
        observations = rollout.experience.observations[-1][last]
        state = rollout.experience.next_state
        valued[-1][last] = other.network.values(
            observations, None if state is None else state[last]
        )
        finals = rollout.experience.final_observations
        if finals:
            states = rollout.experience.final_states
            values = other.network.values(
                np.stack(finals), None if states is None else np.stack(states)
            )
            valued[tuple(rollout.experience.finals.T)] = values
        [_, _] = other.learn(replace(rollout, next_values=valued), again)
        np.testing.assert_allclose(
            store.state()["parameters"], plain_store.state()["parameters"], rtol=1e-5, atol=1e-7
        )


def test_without_a_memory_an_actor_keeps_nothing_more() -> None:
    _, [worker] = by_descent()
    assert worker._actor.collect(worker._learner.pull()).experience is None


@pytest.mark.parametrize("update", ["async", "sync"])
@pytest.mark.parametrize("draw", ["fixed", "poisson"])
def test_each_draw_is_an_update_of_its_own(update: str, draw: str) -> None:
    memory = {"capacity": 1000, "ratio": 2, "draw": draw}
    store, [worker] = by_descent(update=update, memory=memory, total_steps=320, **VTRACE)
    events = events_of(worker)
    assert sum(event.steps for event in events) == 320
    again = [event for event in events if not event.steps]
    assert store.version == len(events) == 20 + len(again)
    assert len(again) == 40 if draw == "fixed" else 20 < len(again) < 60


def test_rounds_of_several_workers_end_with_random_draws(tmp_path: Path) -> None:
    memory = {"capacity": 1000, "ratio": 1.5, "draw": "poisson"}
    run = train(tmp_path, backend="threads", workers=3, update="sync", memory=memory, **VTRACE)
    assert run.summary["stop_reason"] == "total_steps"


# -- what is refused
# --------------------------------------------------------------------------------------------------


def refused_memory(key: str, value: object = ..., env: str = BANDIT, **settings: Any) -> None:
    memory = {"capacity": 1000} | settings.pop("memory", {})
    whole = config(env, **{"memory": memory, **VTRACE} | settings)
    refused(lambda: load_experiment(whole), key, value)


def test_numbers_out_of_range_are_refused() -> None:
    refused_memory("memory.ratio", -1.0, memory={"ratio": -1.0})
    refused_memory("memory.ratio", 1e30, memory={"ratio": 1e30, "draw": "poisson"})
    refused_memory("memory.capacity", 15, memory={"capacity": 15})
    refused_memory("memory.min_size", 1001, memory={"min_size": 1001})
    refused_memory("memory.draw", "often", memory={"draw": "often"})
    refused_memory("memory.batch_size", 0, memory={"batch_size": 0})


def test_a_capacity_beyond_the_machine_is_refused() -> None:
    refused_memory("memory.capacity", machine_bytes(), memory={"capacity": machine_bytes()})


def test_components_that_a_memory_does_not_fit_are_refused() -> None:
    ppo = {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8}
    refused_memory("memory", "sequences", algorithm=ppo, returns="a3c_exp.returns.GAE")
    refused_memory("memory", "sequences", backend="ga3c")
    one_step = {"_target_": "a3c_exp.returns.NStep", "n": 1}
    sarsa = {"_target_": "a3c_exp.algorithms.Sarsa"}
    refused_memory("memory", "sequences", algorithm=sarsa, returns=one_step, epsilon=0.1)
    transitions = {"sample": "transitions"}
    refused_memory("memory.sample", "transitions", network=LSTM, memory=transitions)
    n_step = {"_target_": "a3c_exp.returns.NStep", "n": None}
    refused_memory("returns.n", None, returns=n_step, memory=transitions)
    refused_memory("memory.save", True, memory={"save": True}, record="order", lock=True)


def test_the_critics_returns_of_transitions_have_as_many_steps_as_the_actors() -> None:
    def refused_critic(key: str, value: object, name: str, n: int | None) -> None:
        critic = {"_target_": f"a3c_exp.returns.{name}", "n": n}
        one_step = {"_target_": "a3c_exp.returns.NStep", "n": 1}
        memory = {"sample": "transitions"}
        refused_memory(key, value, returns=one_step, critic_returns=critic, memory=memory)

    refused_critic("critic_returns.n", 5, "NStep", 5)
    refused_critic("critic_returns.n", None, "NStep", None)
    refused_critic("critic_returns", "NStepZero", "NStepZero", 1)


def test_a_run_too_short_for_min_size_is_a_warning() -> None:
    settings = config(memory={"capacity": 1000, "min_size": 500}, total_steps=500, **VTRACE)
    [warning] = load_experiment(settings).warnings
    assert "memory.min_size=500" in warning and "total_steps=500" in warning


def test_an_uncorrected_memory_is_a_warning() -> None:
    [warning] = load_experiment(config(memory={"capacity": 1000})).warnings
    assert warning.startswith("memory: ")


def test_returns_that_have_one_step_of_a_transition_are_a_warning() -> None:
    memory = {"capacity": 1000, "sample": "transitions"}
    [warning] = load_experiment(config(memory=memory, **VTRACE)).warnings
    assert "VTrace" in warning and "one step" in warning


# -- runs that end and go on
# --------------------------------------------------------------------------------------------------


def resumed_log(folder: Path, **memory: Any) -> tuple[str, list[float]]:
    """The log of a run that is resumed, and its memory's sizes."""
    whole = config(SCRIPTED, memory={"capacity": 200, "ratio": 1} | memory, **VTRACE)
    whole["env"]["kwargs"] = ENDS
    train_config(whole, folder)
    train_config(whole | {"total_steps": 240}, folder, resume=True)
    lines = (folder / "metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("workers/memory")
    sizes = [float(line.split(",")[column]) for line in lines[1:] if line.split(",")[column]]
    return (folder / "train.log").read_text(), sizes


def test_a_resumed_run_says_that_it_fills_its_memory_anew(tmp_path: Path) -> None:
    log, _ = resumed_log(tmp_path)
    assert log.count("is filled anew") == 1
    assert not list(tmp_path.glob("checkpoints/memory*"))


def test_a_saved_memory_is_that_of_the_resumed_run(tmp_path: Path) -> None:
    log, sizes = resumed_log(tmp_path, save=True)
    assert "memory" in log and "anew" not in log and "empty" not in log
    assert min(sizes[-3:]) > 160, "it has the steps of both sessions"


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_a_memory_that_was_saved_gives_the_same(network: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"network": LSTM} if network == "lstm" else {}
    _, [worker] = by_descent(CORRIDOR, memory={"capacity": 64}, **settings, **VTRACE)
    snapshot = worker._learner.pull()
    kept = worker._learner.memory
    assert kept is not None
    for _ in range(6):
        kept.add(worker._actor.collect(snapshot))
    path = tmp_path / "memory_0.npz"
    kept.save(path)

    read = RolloutMemory(Memory(capacity=64), 1, 4, saved=path)
    rollout = worker._actor.collect(snapshot)
    kept.add(rollout)
    read.add(rollout)
    assert not read.notice
    one, _ = kept.draw(np.random.default_rng(0), None)
    other, _ = read.draw(np.random.default_rng(0), None)
    for name in ("observations", "actions", "rewards", "log_probs"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert network == "mlp" or np.array_equal(one.state, other.state)  # type: ignore[arg-type]


def test_a_damaged_or_another_memory_is_empty_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "memory_0.npz"
    small = make_memory(10)
    small.add(make_actor(1).collect(START))
    small.save(path)
    whole = path.read_bytes()
    for content in (whole, whole[:200], b"no memory", None):
        path.unlink() if content is None else path.write_bytes(content)
        memory = RolloutMemory(Memory(capacity=20), 1, 1, saved=path)
        memory.add(make_actor(1).collect(START))
        assert path.name in memory.notice
        assert len(memory) <= 5


def test_a_memory_that_does_not_fit_on_the_disk_is_one_line(tmp_path: Path) -> None:
    _, [worker] = by_descent(memory={"capacity": 1000}, total_steps=32, **VTRACE)
    events_of(worker)
    worker._memory_file = tmp_path / "memory_0.npz"
    worker._memory_file.symlink_to("/dev/full")
    refused(worker.close, "memory.save", True)


def test_an_episode_longer_than_the_memory_is_left_out_and_the_first_one_is_said() -> None:
    memory = make_memory(3)
    actor = make_actor(1)
    memory.add(actor.collect(START))
    assert len(memory) == 0 and memory.count_draws(np.random.default_rng(0)) == 0
    assert "memory.capacity" in memory.notice

    memory.notice = ""
    memory.add(actor.collect(START))
    assert memory.notice == ""


def test_a_replaced_worker_begins_with_an_empty_memory_and_says_so_once() -> None:
    whole = faulty("kill", memory={"capacity": 1000, "ratio": 1}, **VTRACE)
    events = ended(whole)
    assert replaced(events)
    notices = [text for event in events for text in event.warnings if "empty memory" in text]
    assert len(notices) == 1
