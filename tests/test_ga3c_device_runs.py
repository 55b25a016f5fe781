"""Networks, learners and whole runs of GA3C on a device: the CPU, and a GPU if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from backend_runs import SETTINGS, ga3c, nobody_works, serial_state, totals
from devices import GPU, every_device
from runs import (
    BANDIT,
    CORNERS,
    CORRIDOR,
    SCRIPTED,
    SMALL_CNN,
    TARGET,
    config,
    drain,
    latest,
    make_store,
    same,
    train_config,
    wait_until,
)
from torch import nn

from a3c_exp.algorithms import A3C
from a3c_exp.backends import ga3c as backend
from a3c_exp.backends.ga3c.device import DeviceParameters, build_thread_network, parameters_on
from a3c_exp.common.arrays import Array
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import SharedStore, Snapshot
from a3c_exp.core.worker import Learner
from a3c_exp.networks import ActorCritic, OutputGradients
from a3c_exp.networks.inputs import sample_observations

PLUGINS = ["scripted", "test_ga3c_device_runs"]
LSTM = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 4}


@pytest.fixture(autouse=True)
def _whole_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions on a GPU in full float32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@dataclass(frozen=True, kw_only=True)
class Predicting(A3C):
    """A3C whose loss has a module: it predicts the targets from the features too."""

    def build(self, features: int) -> nn.Module:
        return nn.Linear(features, 1)

    def loss(self, policy: Any, batch: Any, progress: float) -> Any:
        loss, metrics = super().loss(policy, batch, progress)
        own = batch.mean((policy.module(policy.features)[..., 0] - batch.targets) ** 2)
        return loss + own, {**metrics, "own_loss": own.detach()}


NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"env": SCRIPTED},
    "shared": {"env": CORRIDOR, "network__shared": True},
    "gaussian": {"env": TARGET},
    "pictures": {"env": CORNERS, "network": SMALL_CNN | {"precision": "float32"}},
    "lstm": {"env": SCRIPTED, "network": LSTM},
}


@contextmanager
def networks(name: str, device: torch.device) -> Iterator[tuple[ActorCritic, ActorCritic, Array]]:
    """Within: the same network on host and device, and 12 observations of its environment."""
    experiment = load_experiment(config(**NETWORKS[name]))
    store = make_store(experiment)
    on_host = build_thread_network(experiment, store, learns=True)
    store.pull(0, on_host.vector)
    with parameters_on(device, store):
        on_device = build_thread_network(experiment, store, learns=True)
        store.pull(0, on_device.vector)
        env = experiment.env.make(1, [0])
        yield on_host, on_device, sample_observations(env.observation_space, 12)


class TestNetworks:
    """Networks whose parameters are views of a vector on a device."""

    @every_device
    @pytest.mark.parametrize("name", NETWORKS)
    def test_they_act_as_on_the_host(self, name: str, device: torch.device) -> None:
        with networks(name, device) as (on_host, on_device, observations):
            for count in (5, 12, 2):  # more than before, then fewer: the staging buffer has rows of earlier calls
                rows, state = observations[-count:], on_host.initial_state(count)
                for _ in range(2):
                    one, other = on_host.act_forward(rows, state), on_device.act_forward(rows, state)
                    assert (one[2] is None) == (other[2] is None) == (name != "lstm")
                    for expected, found in zip(one, other, strict=True):
                        if expected is not None and found is not None:
                            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
                    state = one[2]
                np.testing.assert_allclose(on_device.values(rows, state), on_host.values(rows, state), 1e-4, 1e-5)
                on_host.vector *= 1.2
                on_device.vector *= 1.2

    @every_device
    def test_a_network_that_only_acts_has_no_gradient(self, device: torch.device) -> None:
        experiment = load_experiment(config())
        store = make_store(experiment)
        with parameters_on(device, store):
            first, second = (build_thread_network(experiment, store, learns=False) for _ in range(2))
            assert first.gradient is None
            assert all(parameter.grad is None for parameter in first.parameters())
            assert first.vector.data_ptr() == second.vector.data_ptr(), "there is one copy of the parameters"

    @every_device
    def test_with_a_lock_each_thread_has_its_own_vector(self, device: torch.device) -> None:
        experiment = load_experiment(config(lock=True))
        store = make_store(experiment)
        with parameters_on(device, store):
            first, second = (build_thread_network(experiment, store, learns=False) for _ in range(2))
            store.pull(0, first.vector)
            assert first.vector.data_ptr() != second.vector.data_ptr()
            np.testing.assert_array_equal(first.vector.cpu(), store.state()["parameters"])

    @every_device
    def test_their_gradient_is_that_of_the_host(self, device: torch.device) -> None:
        actions = np.random.default_rng(1).integers(0, 4, (3, 4))
        with networks("pictures", device) as (on_host, on_device, observations):
            for _ in range(2):
                for network in (on_host, on_device):
                    network.zero_grad()
                    _, add_gradient = network.evaluate(observations.reshape(3, 4, *observations.shape[1:]), actions)
                    add_gradient(OutputGradients(*(np.full((3, 4), weight, np.float32) for weight in (1, 1, 2))))
                assert on_host.gradient.any()
                np.testing.assert_allclose(on_device.gradient.cpu(), on_host.gradient, rtol=1e-3, atol=1e-4)


# Small denominators would make steps of rounding errors.
LEARNERS: dict[str, dict[str, Any]] = NETWORKS | {
    "the rest shorter": {"env": SCRIPTED, "envs_per_worker": 1, "env__kwargs": {"lengths": (3, 5, 2)}},
    "ppo": {"env": SCRIPTED, "algorithm": {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 2}},
    "v-trace": {"env": SCRIPTED, "returns": "a3c_exp.returns.VTrace"},
    "a module of the loss": {"env": SCRIPTED, "algorithm": {"_target_": "test_ga3c_device_runs.Predicting"}},
    "locked": {"env": SCRIPTED, "lock": True},
    "rmsprop, groups": {
        "env": SCRIPTED,
        "optimizer": {
            "_target_": "a3c_exp.optimizers.RMSProp", "learning_rate": 1e-2, "max_grad_norm": 0.5, "epsilon": 1e-3,
            "param_groups": {"actor": {"learning_rate": 1e-3, "max_grad_norm": 0.1}},
        },
    },
}  # fmt: skip


class TestLearner:
    """A learner whose network and store are on a device."""

    def rollouts(self, experiment: Experiment) -> list[Rollout]:
        env = experiment.env.make(experiment.envs_per_worker, list(range(experiment.envs_per_worker)))
        network = experiment.build_network(env, np.random.default_rng(0))
        actor = Actor(env, network, np.random.default_rng(0), rollout_length=4, gamma=0.9)
        return [actor.collect(Snapshot(version=0, steps=0, normalizer=None)) for _ in range(8)]

    def learn(self, experiment: Experiment, store: SharedStore, rollouts: Sequence[Rollout]) -> list[Event]:
        network = build_thread_network(experiment, store, learns=True)
        learner = Learner(experiment, network, 0, store, np.random.default_rng(0), "learner", Heartbeat())
        events = []
        for rollout in rollouts:
            snapshot = learner.pull()
            events += [step for step in learner.learn([rollout], snapshot) if isinstance(step, Event)]
        return events

    @pytest.mark.parametrize("name", LEARNERS)
    @every_device
    def test_it_learns_from_rollouts_as_on_the_host(self, name: str, device: torch.device) -> None:
        common = {
            "env__reward_scale": 0.1,
            "plugins": ["scripted", "test_ga3c_device_runs"],
            "optimizer__epsilon": 1e-3,
        }
        experiment = load_experiment(config(**LEARNERS[name] | common))
        rollouts = self.rollouts(experiment)
        on_host, on_device = make_store(experiment), make_store(experiment)
        expected_events = self.learn(experiment, on_host, rollouts)
        before = on_device.state()["parameters"]
        with parameters_on(device, on_device):
            events = self.learn(experiment, on_device, rollouts)
        expected, found = on_host.state(), on_device.state()
        assert found["version"] == expected["version"] >= 8
        assert not np.allclose(found["parameters"], before, atol=1e-3)
        np.testing.assert_allclose(found["parameters"], expected["parameters"], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(found["optimizer_state"], expected["optimizer_state"], rtol=1e-2, atol=1e-4)
        for event, other in zip(events, expected_events, strict=True):
            assert (event.steps, event.updates, event.staleness) == (other.steps, other.updates, other.staleness)
            assert event.metrics.keys() == other.metrics.keys()
            assert event.metrics["grad_norm"].mean == pytest.approx(other.metrics["grad_norm"].mean, rel=1e-3)

    @every_device
    def test_the_module_of_a_loss_lies_in_the_same_vector(self, device: torch.device) -> None:
        experiment = load_experiment(config(**LEARNERS["a module of the loss"], plugins=PLUGINS))
        store = make_store(experiment)
        with parameters_on(device, store):
            network = build_thread_network(experiment, store, learns=True)
            assert network.loss_module is not None
            (weight, _) = network.loss_module.parameters()
            assert torch.equal(weight.flatten(), network.vector[network.param_slices["loss"]][:-1])
            assert weight.device == network.vector.device

    @every_device
    def test_a_gradient_that_is_not_finite_is_refused(self, device: torch.device) -> None:
        experiment = load_experiment(config(SCRIPTED))
        (rollout, *_) = self.rollouts(experiment)
        rollout.rewards[0, 0] = np.nan
        store = make_store(experiment)
        before = store.state()
        with parameters_on(device, store):
            (event,) = self.learn(experiment, store, [rollout])
        assert (event.rejected, event.updates, event.steps) == (1, 0, 16)
        np.testing.assert_array_equal(store.state()["parameters"], before["parameters"])
        assert store.version == 0


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of GA3C take the CPU for a device."""
    monkeypatch.setattr(backend, "find_device", lambda network, name: torch.device("cpu"))


@pytest.mark.usefixtures("on_device")
class TestRuns:
    """Whole runs of GA3C."""

    ALONE: ClassVar[dict[str, Any]] = {"backend__rollouts": 1, "backend__training_batch": 1}

    @pytest.mark.parametrize(
        "name", ["the defaults", "rmsprop, locked", "continuous actions, normalized", "schedules", "lstm", "pictures"]
    )
    def test_one_agent_that_waits_for_its_updates_is_a_serial_run(self, name: str) -> None:
        _, state, error = drain(ga3c(**{"env": BANDIT} | SETTINGS[name] | self.ALONE))
        assert error is None
        expected = serial_state(name)
        assert (state["version"], state["steps"]) == (expected["version"], expected["steps"])
        np.testing.assert_allclose(state["parameters"], expected["parameters"], rtol=1e-2, atol=1e-3)
        np.testing.assert_allclose(state["stats"], expected["stats"], rtol=1e-3)

    @pytest.mark.parametrize("lock", [False, True])
    def test_every_update_and_step_is_counted_once(self, lock: bool) -> None:
        threads = {"backend__trainers": 2, "backend__predictors": 2}
        events, state, error = drain(ga3c(CORRIDOR, workers=3, total_steps=800, lock=lock, **threads))
        assert error is None
        updates, steps, measured, _ = totals(events)
        assert updates == measured == state["version"]
        assert steps == state["steps"] >= 800
        assert np.isfinite(state["parameters"]).all()

    def test_training_that_diverges_ends_with_the_reason(self) -> None:
        failing = {"env__kwargs": {"fails_at": 9, "failure": "huge"}, "workers": 2, "total_steps": 10**9}
        _, state, error = drain(ga3c(SCRIPTED, **failing))
        assert str(error).startswith("trainer 0: no gradient of the last 20 rollouts was finite.")
        assert np.isfinite(state["parameters"]).all()
        wait_until(nobody_works)

    def test_cartpole_is_learned_evaluated_saved_and_resumed(self, tmp_path: Path) -> None:
        """Random actions last for 22 steps on average."""
        whole = ga3c(
            "CartPole-v1", workers=4, envs_per_worker=4, rollout_length=16, gamma=0.99, total_steps=60_000,
            eval={"every": 20_000, "episodes": 5}, checkpoint={"every": 5_000}, optimizer__learning_rate=3e-3,
        )  # fmt: skip
        done = train_config(whole, tmp_path)
        assert (done.summary["stop_reason"], done.summary["error"]) == ("total_steps", None)
        assert done.summary["best_eval_return"] > 150
        assert "the network and the optimizer compute on device cpu, by torch" in (tmp_path / "train.log").read_text()
        before = latest(tmp_path)["store"]
        assert before["version"] == done.summary["updates"] > 50
        done = train_config(whole | {"total_steps": 64_000}, tmp_path, resume=True)
        after = latest(tmp_path)["store"]
        assert done.summary["stop_reason"] == "total_steps"
        assert after["steps"] >= 64_000
        assert after["version"] > before["version"]
        assert not same(after["parameters"], before["parameters"])

    def test_a_run_starts_from_another_ones_parameters(self, tmp_path: Path) -> None:
        train_config(ga3c(), tmp_path / "first")
        begun = latest(tmp_path / "first")["store"]
        train_config(ga3c(init_from=str(tmp_path / "first"), optimizer__learning_rate=1e-9), tmp_path / "second")
        np.testing.assert_allclose(latest(tmp_path / "second")["store"]["parameters"], begun["parameters"], atol=1e-6)

    def test_a_device_that_fails_leaves_a_checkpoint_and_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("CUDA error: scripted")

        monkeypatch.setattr(DeviceParameters, "_step", broken)
        monkeypatch.setattr(DeviceParameters, "_refresh_host", broken)
        done = train_config(ga3c(workers=2), tmp_path)
        assert done.summary["stop_reason"] == "failed"
        assert "CUDA error: scripted" in done.summary["error"]
        assert np.isfinite(latest(tmp_path)["store"]["parameters"]).all()
        wait_until(nobody_works)


@GPU
@pytest.mark.parametrize("settings", [{}, {"lock": True}, {"backend__trainers": 2}], ids=str)
def test_a_run_learns_on_a_gpu(settings: dict[str, Any]) -> None:
    whole = ga3c(CORNERS, network=SMALL_CNN, workers=2, total_steps=800, backend__device="cuda", **settings)
    _, state, error = drain(whole)
    assert error is None
    assert np.isfinite(state["parameters"]).all()
    assert state["version"] > 5
