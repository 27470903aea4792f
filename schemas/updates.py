"""What updates of parameters in the backward take, with their states in another memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinkSpeed:
    """A link as it was measured: bytes a second that leave (`to`) and return (`back`), each with
    nothing else on its way, and `both` ways at once, each way; seconds of a short transfer."""

    to: float
    back: float
    both: tuple[float, float]
    latency: float

    def seconds(self, size: int, leaves: bool) -> float:
        """What a transfer takes while the other way is busy too."""
        return self.latency + size / self.both[0 if leaves else 1]


@dataclass(frozen=True)
class UpdateCost:
    """The update of one parameter.

    `pieces` are the bytes of states that each piece brings, `seconds` what all of it computes,
    `peak` the most bytes that it takes beyond parameter, gradient and staging, and `net` what stays
    of these; `first` are peak and net where there were no states.
    """

    path: str
    pieces: tuple[int, ...]
    seconds: float
    peak: int
    net: int
    first: tuple[int, int]


@dataclass(frozen=True)
class WholeStep:
    """A training step with the updates of its parameters, as predicted.

    `total` is the most bytes on the device: `parameters`, `buffers`, `inputs`, the `staging` that
    states pass through, and `peak`, what the step takes beyond these; `first_peak` is that of the
    first step, which makes the states, and `accumulating_peak` that of a last microbatch, which
    finds gradients there. `slow` bytes are in `slow_memory`, of which `moved` leave
    and return in each step. It takes `seconds`, and waits for states for `waited` of them.
    """

    optimizer: str
    total: int
    parameters: int
    buffers: int
    inputs: int
    staging: int
    peak: int
    first_peak: int
    accumulating_peak: int
    slow_memory: str
    slow: int
    moved: int
    seconds: float
    waited: float

    @property
    def places(self) -> dict[str, str]:
        """Which memory each part of the step lives in."""
        device = "device"
        return {
            "parameters": device,
            "gradients": f"{device}, each until its parameter is updated",
            "optimiser states": f"{self.slow_memory}, pieces of them on the {device}",
        }
