"""How vectors travel between workers and parameter servers, and how they are divided among servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from servers import SIZE, layout, learn

from a3c_exp.backends.ray.wire_dtype import decode, encode, piece, stretches


class TestTheWire:
    @given(arrays(np.float32, 9, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
    def test_float32_is_exact_and_bfloat16_has_eight_bits(self, vector: Any) -> None:
        exact, half = np.empty_like(vector), np.empty_like(vector)
        decode(encode(vector, "float32"), exact)
        sent = encode(vector, "bfloat16")
        decode(sent, half)
        assert exact.tobytes() == vector.tobytes()
        assert sent.nbytes * 2 == vector.nbytes
        assert half == pytest.approx(vector, rel=2**-8, abs=1e-38)

    def test_bfloat16_is_torch_s(self) -> None:
        import torch

        vector = np.random.default_rng(0).normal(size=1000).astype(np.float32)
        half = np.empty_like(vector)
        decode(encode(vector, "bfloat16"), half)
        assert np.array_equal(half, torch.from_numpy(vector).to(torch.bfloat16).float().numpy())

    def test_training_goes_on_in_bfloat16(self, cluster: Any) -> None:
        servers = cluster(layout(1), shards=2, wire_dtype="bfloat16")
        worker = servers.worker()
        worker.start()
        learn(worker, 0, -1.0)
        assert learn(worker, 0, -0.5)[0] == 1.0
        worker.leave(0)
        assert servers.fetch()["parameters"].tolist() == [1.5] * SIZE
        assert servers.ask(servers.servers[0].news()).received == 2 * 2 * (SIZE // 2)

    def test_a_vector_falls_into_stretches_and_so_do_its_parts(self) -> None:
        pieces = stretches(SIZE, 3)
        assert [list(range(SIZE))[stretch] for stretch in pieces] == [[0, 1], [2, 3], [4, 5, 6]]
        assert [piece(layout(), stretch).param_slices for stretch in pieces] == [
            {"actor": slice(0, 2), "critic": slice(2, 2)},
            {"actor": slice(0, 2), "critic": slice(2, 2)},
            {"actor": slice(0, 0), "critic": slice(0, 3)},
        ]
        assert len(stretches(2, 5)) == 2, "no server without a number to hold"
