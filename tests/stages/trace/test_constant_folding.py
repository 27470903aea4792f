"""What is known of the tensors that a forward makes from nothing but constants."""

from __future__ import annotations

import torch

from tightfit.stages.trace.constant_folding import ConstantFolder


def test_what_is_written_is_forgotten_and_nothing_else() -> None:
    known = ConstantFolder(every=True)
    kept = torch.zeros(3)
    known.follow(torch.zeros, (3,), {}, kept)
    for _ in range(20):
        made = torch.zeros(3)
        known.follow(torch.zeros, (3,), {}, made)
        view = made[1:]
        known.follow(torch.Tensor.__getitem__, (made, slice(1, None)), {}, view)
        assert known.find(made) is not None and known.find(view) is not None
        known.follow(torch.Tensor.__setitem__, (view, 0, torch.ones(())), {}, None)
        assert known.find(made) is None and known.find(view) is None
    assert known.find(kept) is not None
