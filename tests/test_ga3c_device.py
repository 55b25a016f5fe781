"""GA3C on a device: the same steps, networks, learners and runs as on the host. The device is the
CPU, and a GPU if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backend_runs import SETTINGS, ga3c, nobody_works
from refusals import refused
from runs import (
    BANDIT,
    CORNERS,
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
from stores import SIZE, make_spec, ones, push

from a3c_exp.backends import ga3c as backend
from a3c_exp.backends.ga3c.device import (
    DeviceParameters,
    build_thread_network,
    find_device,
    parameters_on,
)
from a3c_exp.common.arrays import Floats
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.acting import ActingPolicy
from a3c_exp.core.events import Event
from a3c_exp.core.experiment import Experiment, build_network
from a3c_exp.core.heartbeat import Heartbeat
from a3c_exp.core.rollout import Actor, Rollout
from a3c_exp.core.store import SharedStore, Snapshot
from a3c_exp.core.worker import Learner
from a3c_exp.errors import RunError
from a3c_exp.optimizers import SGD, Adam, Optimizer, ParamGroup, RMSProp, TorchOptimizer, clip
from a3c_exp.schedules import Linear

CPU = torch.device("cpu")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
every_device = pytest.mark.parametrize(
    "device", [CPU, pytest.param(torch.device("cuda"), marks=GPU)]
)
LSTM = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 4}
GROUPS = {"critic": ParamGroup(learning_rate=0.3)}
OPTIMIZERS: list[Optimizer] = [
    RMSProp(learning_rate=0.01, epsilon_inside=True, initial_mean_square=1.0, momentum=0.5),
    Adam(learning_rate=0.01, max_grad_norm=0.7, betas=(0.9, 0.5)),
    SGD(learning_rate=0.01, momentum=0.5),
    RMSProp(learning_rate=0.01, max_grad_norm=0.7, staleness_power=0.5, param_groups=GROUPS),
    TorchOptimizer(name="NAdam", learning_rate=0.01, param_groups=GROUPS),
]


@pytest.fixture(autouse=True)
def _whole_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions on a GPU in full float32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def start_store(**spec_settings: Any) -> SharedStore:
    store = SharedStore(make_spec(**spec_settings))
    store.initialize(np.random.default_rng(0).normal(size=SIZE).astype(np.float32))
    return store


class TestSteps:
    @pytest.mark.parametrize(
        "optimizer", OPTIMIZERS, ids=["rmsprop", "adam", "sgd", "groups, stale", "torch"]
    )
    @every_device
    def test_they_are_those_of_the_host(self, optimizer: Optimizer, device: torch.device) -> None:
        """The learning rate falls, and every gradient is two updates stale but the first ones."""
        locked = isinstance(optimizer, Adam)  # in two copies
        settings = {
            "optimizer": optimizer,
            "lock": locked,
            "schedule": Linear(start=1.0, end=0.0),
        }
        on_host = start_store(**settings)
        on_device = start_store(**settings)
        rng = np.random.default_rng(1)
        with parameters_on(device, on_device):
            for t in range(20):
                gradient = (rng.normal(size=SIZE) * 10 ** rng.uniform(-3, 2)).astype(np.float32)
                snapshot = Snapshot(version=max(0, t - 2), steps=t * 10, normalizer=None)
                for store, vector in (
                    (on_host, gradient),
                    (on_device, torch.from_numpy(gradient.copy()).to(device)),
                ):
                    clip(vector, optimizer.max_grad_norm)
                    event = push(store, 0, vector, snapshot).event
                    assert event.staleness == {min(t, 2): 1}
                expected = on_host.state()
                device_state = on_device.state()
                assert expected["version"] == device_state["version"] == t + 1
                for key in ("parameters", "optimizer_state"):
                    np.testing.assert_allclose(
                        device_state[key],
                        expected[key],
                        rtol=1e-5,
                        atol=1e-6,
                        err_msg=f"{key}, {t}",
                    )


class TestStore:
    """A store whose parameters are on a device."""

    @every_device
    def test_its_state_is_that_of_the_device(self, device: torch.device) -> None:
        store = start_store(optimizer=SGD(learning_rate=1.0, momentum=0.5))
        before = store.state()
        host = store.parameters
        ones_there = torch.ones(SIZE, device=device)

        def push_there() -> None:
            push(store, 1, ones_there, store.pull(1, torch.empty_like(ones_there)))

        with parameters_on(device, store):
            push_there()
            np.testing.assert_array_equal(host.state()["parameters"], before["parameters"])
            during = store.state()
            np.testing.assert_allclose(during["parameters"], before["parameters"] - 1)
            np.testing.assert_allclose(during["optimizer_state"], np.ones((1, 1, SIZE)))
            np.testing.assert_array_equal(store.state()["parameters"], during["parameters"])
            push_there()
            np.testing.assert_allclose(
                during["parameters"], before["parameters"] - 1, err_msg="it is a copy"
            )
        assert store.parameters is host
        np.testing.assert_allclose(store.state()["parameters"], before["parameters"] - 2.5)
        assert store.version == 2

    def test_an_optimizer_that_takes_arrays_alone_is_refused_in_one_line(self) -> None:
        class Signs(SGD):
            def direction(self, state: Floats, gradient: Floats, scratch: Floats, t: int) -> Floats:
                return np.sign(gradient, out=scratch)

        store = start_store(optimizer=Signs(learning_rate=1.0))
        with (
            pytest.raises(RunError, match=r"^device cpu failed \(backend.device=cpu .*"),
            parameters_on(CPU, store),
        ):
            pass
        push(store, 0, ones())


def test_auto_is_a_gpu_if_there_is_one_but_not_for_a_recurrent_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiments = load_experiment(config()), load_experiment(config(network=LSTM))
    feedforward, recurrent = (build_network(experiment)[0] for experiment in experiments)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    gpu = torch.device("cuda", 0)
    assert (find_device(feedforward, "auto"), find_device(recurrent, "auto")) == (gpu, None)
    assert (find_device(feedforward, "cpu"), find_device(recurrent, "cuda")) == (None, gpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device(feedforward, "auto") is None
    refused(lambda: load_experiment(ga3c(backend__device="cuda")), "backend.device", "cuda")


# Small denominators would make steps of rounding errors.
LEARNERS: dict[str, dict[str, Any]] = {
    "gaussian": {"env": TARGET},
    "images": {"env": CORNERS, "network": SMALL_CNN | {"precision": "float32"}},
    "lstm": {"env": SCRIPTED, "network": LSTM},
    "ppo": {
        "env": SCRIPTED,
        "algorithm": {"_target_": "a3c_exp.algorithms.PPO", "minibatch_size": 8, "epochs": 2},
    },
    "a module of the loss": SETTINGS["a loss with a module"],
}


class TestLearner:
    """A network and a learner whose parameters are on a device."""

    def rollouts(self, experiment: Experiment) -> list[Rollout]:
        env = experiment.env.make(
            experiment.envs_per_worker, list(range(experiment.envs_per_worker))
        )
        network = experiment.build_network(env, np.random.default_rng(0))
        policy = ActingPolicy(network, np.random.default_rng(0))
        actor = Actor(env, policy, experiment.env, rollout_length=4, gamma=0.9)
        return [actor.collect(Snapshot(version=0, steps=0, normalizer=None)) for _ in range(8)]

    def learn(
        self, experiment: Experiment, store: SharedStore, rollouts: Sequence[Rollout]
    ) -> list[Event]:
        network = build_thread_network(experiment, store, build_network(experiment)[1])
        learner = Learner(
            experiment, network, 0, store, np.random.default_rng(0), "learner", Heartbeat()
        )
        events = []
        for rollout in rollouts:
            snapshot = learner.pull()
            events += [step for step in learner.learn(rollout, snapshot) if isinstance(step, Event)]
        return events

    @pytest.mark.parametrize("name", LEARNERS)
    @every_device
    def test_it_learns_from_rollouts_as_on_the_host(self, name: str, device: torch.device) -> None:
        common = {"env__reward_scale": 0.1, "optimizer__epsilon": 1e-3}
        experiment = load_experiment(config(**LEARNERS[name] | common))
        rollouts = self.rollouts(experiment)
        on_host = make_store(experiment)
        on_device = make_store(experiment)
        expected_events = self.learn(experiment, on_host, rollouts)
        before = on_device.state()["parameters"]
        with parameters_on(device, on_device):
            events = self.learn(experiment, on_device, rollouts)
        expected = on_host.state()
        device_state = on_device.state()
        assert device_state["version"] == expected["version"] >= 8
        assert not np.allclose(device_state["parameters"], before, atol=1e-3)
        np.testing.assert_allclose(
            device_state["parameters"], expected["parameters"], rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(
            device_state["optimizer_state"], expected["optimizer_state"], rtol=1e-2, atol=1e-4
        )
        for event, other in zip(events, expected_events, strict=True):
            assert (event.steps, event.updates, event.staleness) == (
                other.steps,
                other.updates,
                other.staleness,
            )
            assert event.metrics.keys() == other.metrics.keys()
            assert event.metrics["grad_norm"].mean == pytest.approx(
                other.metrics["grad_norm"].mean, rel=1e-3
            )


class TestRuns:
    """Whole runs of GA3C that take the CPU for a device."""

    @pytest.fixture(autouse=True)
    def _on_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backend, "find_device", lambda network, name: CPU)

    def test_the_bandit_is_learned_evaluated_saved_and_resumed(self, tmp_path: Path) -> None:
        run_config = ga3c(BANDIT, workers=2, total_steps=3000, eval={"every": 1500, "episodes": 20})
        done = train_config(run_config, tmp_path)
        assert (done.summary["stop_reason"], done.summary["error"]) == ("total_steps", None)
        assert done.summary["best_eval_return"] == 1
        assert (
            "the network and the optimizer compute on device cpu"
            in (tmp_path / "train.log").read_text()
        )
        before = latest(tmp_path)["store"]
        assert before["version"] == done.summary["updates"] > 30
        train_config(run_config | {"total_steps": 3200}, tmp_path, resume=True)
        after = latest(tmp_path)["store"]
        assert after["steps"] >= 3200 and after["version"] > before["version"]
        assert not same(after["parameters"], before["parameters"])

    def test_a_device_that_fails_leaves_a_checkpoint_and_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("CUDA error: scripted")

        monkeypatch.setattr(DeviceParameters, "step", broken)
        monkeypatch.setattr(DeviceParameters, "state", broken)
        done = train_config(ga3c(workers=2), tmp_path)
        assert done.summary["stop_reason"] == "failed"
        assert "CUDA error: scripted" in done.summary["error"]
        assert np.isfinite(latest(tmp_path)["store"]["parameters"]).all()
        wait_until(nobody_works)


@GPU
def test_a_run_learns_on_a_gpu() -> None:
    settings = {"backend__device": "cuda", "backend__trainers": 2, "lock": True}
    run_config = ga3c(CORNERS, network=SMALL_CNN, workers=2, total_steps=800, **settings)
    _, state, error = drain(run_config)
    assert error is None
    assert np.isfinite(state["parameters"]).all()
    assert state["version"] > 5
