"""A checkpoint policy of tightfit as an activation checkpointing of torchtitan 0.3.

Write the policy once, on all ranks, for the model as torchtitan has parallelized it with `FullAC`,
so that what FSDP2 gathers is counted (`debug_model.py` beside this does so):

    policy = tightfit.checkpoint_policy(model, (tokens,), budget="40GiB", loss=loss_function)
    Path("policy.pickle").write_bytes(pickle.dumps(policy))

and name the file in a configuration of torchtitan's registry:

    activation_checkpoint=PlannedAC.Config(policy="policy.pickle")

torchtitan applies it before FSDP2. It refuses blocks of another class or other shapes, and the
forward raises `PlanMismatch` if a block runs other operators than those of the policy. A pickle
runs code when it is read: read only files that you wrote.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing


class PlannedAC(ActivationCheckpointing):
    """Saves in each block what a policy of tightfit says."""

    @dataclass(kw_only=True, slots=True)
    class Config(ActivationCheckpointing.Config):
        """`policy` is the file of the policy."""

        policy: str

    def apply(self, model: nn.Module) -> None:
        """Checkpoints the blocks of the model, in place."""
        pickle.loads(Path(self.config.policy).read_bytes()).apply(model)
