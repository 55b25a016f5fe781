"""GA3C's parameters on a device: the same steps as on the host. The device is the CPU, and a GPU if there is one."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from backend_runs import ga3c
from devices import NO_GPU, ArrayLion, every_device
from runs import config, make_store
from stores import SIZE, event_of, make_spec, ones, pull, push

from a3c_exp.backends.ga3c.device import (
    DeviceParameters,
    build_thread_network,
    describe,
    find_device,
    parameters_on,
    takes_tensors,
)
from a3c_exp.common.arrays import Vector
from a3c_exp.config.builder import load_experiment
from a3c_exp.core.store import SharedStore, Snapshot
from a3c_exp.errors import ConfigError
from a3c_exp.networks import ActorCritic
from a3c_exp.optimizers import SGD, Adam, Optimizer, ParamGroup, RMSProp, clip
from a3c_exp.schedules import Linear

LSTM = {"_target_": "a3c_exp.networks.Lstm", "hidden_size": 4}

GROUPS = {"critic": ParamGroup(learning_rate=0.3, max_grad_norm=0.5)}
OPTIMIZERS: dict[str, Optimizer] = {
    "RMSProp": RMSProp(learning_rate=0.01),
    "RMSProp, inside, momentum": RMSProp(
        learning_rate=0.01, epsilon_inside=True, initial_mean_square=1.0, momentum=0.5
    ),
    "Adam": Adam(learning_rate=0.01),
    "Adam, short memory": Adam(learning_rate=0.01, betas=(0.9, 0.5)),
    "SGD": SGD(learning_rate=0.01),
    "SGD with momentum": SGD(learning_rate=0.01, momentum=0.5),
    "clipped": Adam(learning_rate=0.01, max_grad_norm=0.7),
    "groups": RMSProp(learning_rate=0.01, max_grad_norm=0.7, param_groups=GROUPS),
    "stale": SGD(learning_rate=0.01, staleness_power=0.5, param_groups=GROUPS),
    "for arrays alone": ArrayLion(learning_rate=0.01, max_grad_norm=0.7, param_groups=GROUPS),
}


def start_store(spec_settings: dict[str, Any]) -> SharedStore:
    store = SharedStore(make_spec(**spec_settings))
    store.initialize(np.random.default_rng(0).normal(size=SIZE).astype(np.float32))
    return store


class TestSteps:
    """Updates of parameters on a device."""

    @pytest.mark.parametrize("locked", [False, True], ids=["without a lock", "locked"])
    @pytest.mark.parametrize("name", OPTIMIZERS)
    @every_device
    def test_they_are_those_of_the_host(self, name: str, locked: bool, device: torch.device) -> None:
        """The learning rate falls, and every gradient is two updates stale but the first ones."""
        settings = {"optimizer": OPTIMIZERS[name], "locked": locked, "schedule": Linear(start=1.0, end=0.0)}
        on_host, on_device = start_store(settings), start_store(settings)
        rng = np.random.default_rng(1)
        with parameters_on(device, on_device) as parameters:
            assert parameters.optimizer_takes_tensors == (name != "for arrays alone")
            for t in range(60):
                gradient = (rng.normal(size=SIZE) * 10 ** rng.uniform(-3, 2)).astype(np.float32)
                snapshot = Snapshot(version=max(0, t - 2), steps=t * 10, normalizer=None)
                for store, vector in ((on_host, gradient), (on_device, torch.from_numpy(gradient.copy()).to(device))):
                    clip(vector, store.spec.optimizer, store.spec.param_slices)
                    event = event_of(push(store, 0, vector, snapshot))
                    assert event.staleness == {min(t, 2): 1}
                expected, found = on_host.state(), on_device.state()
                assert expected["version"] == found["version"] == t + 1
                for key in ("parameters", "optimizer_state"):
                    np.testing.assert_allclose(found[key], expected[key], rtol=1e-5, atol=1e-6, err_msg=f"{key}, {t}")

    @pytest.mark.parametrize("groups", [{}, {"actor": ParamGroup(max_grad_norm=1.0)}], ids=["one norm", "groups"])
    @every_device
    def test_the_norm_of_a_gradient_is_that_of_the_host(
        self, groups: dict[str, ParamGroup], device: torch.device
    ) -> None:
        slices = make_spec().param_slices
        optimizer = SGD(learning_rate=0.1, max_grad_norm=0.5, param_groups=groups)
        for numbers in ([1.0, -2, 3, 4, 5, 6], [0.0] * 6, [1e30, -1e30, 1, 1, 1, 1e30]):
            gradient = np.array(numbers, np.float32)
            tensor = torch.from_numpy(gradient.copy()).to(device)
            assert clip(tensor, optimizer, slices) == pytest.approx(clip(gradient, optimizer, slices), rel=1e-6)
            np.testing.assert_allclose(tensor.cpu(), gradient, rtol=1e-6)
        for bad in (math.nan, math.inf):
            tensor = torch.tensor([1.0, 2, bad, 3, 4, 5], device=device)
            before = tensor.clone()
            assert not math.isfinite(clip(tensor, optimizer, slices))
            assert torch.equal(tensor.nan_to_num(), before.nan_to_num())

    @every_device
    def test_adam_leaves_an_element_alone_whose_mean_has_no_mean_square(self, device: torch.device) -> None:
        store = start_store({"optimizer": Adam(learning_rate=0.1)})
        before = store.state()["parameters"]
        store.parameters._states[0, 0, 0, 0] = 1e-3
        gradient = torch.tensor([0.0, 1, 0, 0, 0, 0], device=device)
        with parameters_on(device, store):
            push(store, 0, gradient)
        after = store.state()
        np.testing.assert_allclose(after["parameters"] - before, [0, -0.1, 0, 0, 0, 0], atol=1e-6)
        np.testing.assert_allclose(after["optimizer_state"][0, 0], [0, 0.1, 0, 0, 0, 0], atol=1e-6)

    def test_an_optimizer_whose_tensors_are_not_its_arrays_steps_on_the_host(self) -> None:
        class Different(SGD):
            def direction(self, state: Vector, gradient: Vector, scratch: Vector, t: int) -> Vector:
                return gradient if isinstance(gradient, np.ndarray) else 2 * gradient

        assert not takes_tensors(Different(learning_rate=1.0), torch.device("cpu"))
        assert takes_tensors(SGD(learning_rate=1.0), torch.device("cpu"))


class TestStore:
    """A store whose parameters are on a device."""

    @every_device
    def test_its_state_is_that_of_the_device(self, device: torch.device) -> None:
        store = start_store({"optimizer": SGD(learning_rate=1.0, momentum=0.5)})
        before = store.state()
        host = store.parameters
        with parameters_on(device, store):
            push(store, 1, torch.ones(SIZE, device=device))
            np.testing.assert_array_equal(host.state()["parameters"], before["parameters"])
            during = store.state()
            np.testing.assert_allclose(during["parameters"], before["parameters"] - 1)
            np.testing.assert_allclose(during["optimizer_state"], np.ones((1, 1, SIZE)))
            np.testing.assert_array_equal(host.state()["parameters"], during["parameters"])
            np.testing.assert_array_equal(store.parameters.read(), during["parameters"])
            push(store, 1, torch.ones(SIZE, device=device))
            np.testing.assert_allclose(during["parameters"], before["parameters"] - 1, err_msg="it is a copy")
        assert store.parameters is host
        np.testing.assert_allclose(store.state()["parameters"], before["parameters"] - 2.5)
        assert store.version == 2

    @pytest.mark.parametrize("locked", [False, True])
    @every_device
    def test_it_goes_on_where_the_host_has_stopped_and_back(self, locked: bool, device: torch.device) -> None:
        settings = {"optimizer": Adam(learning_rate=0.1), "locked": locked}
        mixed, host = start_store(settings), start_store(settings)
        for turn in range(6):
            push(host, 0, ones(turn - 2.5))
            if turn % 2:
                with parameters_on(device, mixed):
                    push(mixed, 0, torch.full((SIZE,), turn - 2.5, device=device), Snapshot(turn, 0, None))
            else:
                push(mixed, 0, ones(turn - 2.5))
        for key in ("parameters", "optimizer_state", "version"):
            np.testing.assert_allclose(mixed.state()[key], host.state()[key], atol=1e-6)

    def test_a_device_that_fails_leaves_the_numbers_of_the_last_state(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store, gradient = start_store({}), torch.ones(SIZE)

        def broken(self: DeviceParameters) -> None:
            raise RuntimeError("CUDA error: scripted")

        with pytest.raises(RuntimeError, match="scripted"), parameters_on(torch.device("cpu"), store):
            push(store, 0, gradient)
            saved = store.state()
            push(store, 0, gradient)
            monkeypatch.setattr(DeviceParameters, "_refresh_host", broken)
        np.testing.assert_array_equal(store.state()["parameters"], saved["parameters"])

    @pytest.mark.parametrize(
        "optimizer", [SGD(learning_rate=1.0), ArrayLion(learning_rate=1.0)], ids=["tensors", "arrays"]
    )
    @every_device
    def test_with_a_lock_no_update_is_lost_and_nobody_sees_half_of_one(
        self, optimizer: Optimizer, device: torch.device
    ) -> None:
        """Every element has the same number after each update: minus the version."""
        size, threads, updates = 300_000, 3, 15
        store = SharedStore(make_spec(size=size, param_slices={}, locked=True, optimizer=optimizer))
        store.initialize(np.zeros(size, np.float32))
        seen: list[tuple[int, float, float]] = []
        ended = threading.Event()

        def learn(worker: int) -> None:
            gradient = torch.ones(size, device=device)
            for _ in range(updates):
                push(store, worker, gradient, Snapshot(version=0, steps=0, normalizer=None))

        def act() -> None:
            into = torch.empty(size, device=device)
            while not ended.is_set():
                version = store.pull(0, into).version
                seen.append((version, float(into.min()), float(into.max())))

        with parameters_on(device, store):
            learners = [threading.Thread(target=learn, args=(worker,)) for worker in range(threads)]
            actor = threading.Thread(target=act)
            for thread in (actor, *learners):
                thread.start()
            for thread in learners:
                thread.join()
            ended.set()
            actor.join()
        assert seen
        assert all(low == high == -version for version, low, high in seen)
        np.testing.assert_array_equal(store.state()["parameters"], -float(threads * updates))
        assert store.version == threads * updates

    def test_without_one_a_pull_copies_nothing(self) -> None:
        store = start_store({})
        with parameters_on(torch.device("cpu"), store):
            push(store, 0, torch.ones(SIZE))
            assert pull(store).version == 1


class TestChoice:
    """`backend.device`."""

    def networks(self) -> tuple[ActorCritic, ActorCritic]:
        """Without and with a recurrent state."""
        wholes = (config(), config(network=LSTM))
        return tuple(
            build_thread_network(experiment, make_store(experiment), learns=False)
            for experiment in map(load_experiment, wholes)
        )  # type: ignore[return-value]

    def test_auto_is_a_gpu_if_there_is_one_but_not_for_a_recurrent_network(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        feedforward, recurrent = self.networks()
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        gpu = torch.device("cuda", 0)
        assert (find_device(feedforward, "auto"), find_device(recurrent, "auto")) == (gpu, None)
        assert (find_device(feedforward, "cuda"), find_device(recurrent, "cuda")) == (gpu, gpu)
        assert (find_device(feedforward, "cpu"), find_device(recurrent, "cpu")) == (None, None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert find_device(feedforward, "auto") is None

    @NO_GPU
    def test_a_gpu_that_this_machine_lacks_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"backend.device = 'cuda': must be cpu or auto"):
            load_experiment(ga3c(backend__device="cuda"))

    def test_the_log_says_where_network_and_optimizer_are(self) -> None:
        cpu = torch.device("cpu")
        for optimizer, expected in (
            (SGD(learning_rate=1.0), "the network and the optimizer compute on device cpu, by torch"),
            (
                ArrayLion(learning_rate=1.0),
                "the network computes on device cpu, by torch; the optimizer on the CPU: ArrayLion takes no tensors",
            ),
        ):
            store = start_store({"optimizer": optimizer})
            assert describe(store.parameters) == "the network and the optimizer compute on the CPU"
            with parameters_on(cpu, store):
                assert describe(store.parameters) == expected
