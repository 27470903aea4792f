"""Messages between the ranks of a pipeline: one storage each, named by parcel and microbatch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist


class PeerMessages:
    """Sends and receives in a group; see `PipelineRank`."""

    def __init__(self, group: Any, facts: Mapping[str, Any]) -> None:
        self.group, self.facts = group, facts
        self.count = int(facts["microbatches"])
        self.rank = NO_RANK
        self.pending_sends: dict[tuple[int, int, int], Any] = {}

    def check(self, rank: int | None) -> int:
        """This process's rank; raises RuntimeError where the group is none of the pipeline."""
        ranks = len(self.facts["devices"])
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                f"a pipeline of {ranks} ranks needs a group of processes: start them with torchrun "
                'and call torch.distributed.init_process_group("gloo")'
            )
        size, own = dist.get_world_size(self.group), dist.get_rank(self.group)
        if size != ranks:
            raise RuntimeError(
                f"the pipeline has {ranks} ranks and the group {size}: start as many processes, or "
                "give the group of those that form a pipeline"
            )
        if "gloo" not in str(dist.get_backend(self.group)):
            raise RuntimeError(
                f"the group is one of {dist.get_backend(self.group)}, and pipelines run on gloo"
            )
        if rank is not None and rank != own:
            raise RuntimeError(f"rank {rank} is given, and this process is rank {own} of the group")
        self.rank = own
        return own

    def send(self, parcel: int, microbatch: int, peer: int, tensor: torch.Tensor) -> None:
        """Begins to send; the tensor is held until `wait`."""
        if tensor.numel():
            work = self.begin(dist.isend, tensor, parcel * self.count + microbatch, peer)
            self.pending_sends[parcel, microbatch, peer] = (work, tensor)

    def wait(self, parcel: int, microbatch: int, peer: int) -> None:
        """Ends what `send` began."""
        under_way = self.pending_sends.pop((parcel, microbatch, peer), None)
        if under_way is not None:
            with self.peer_errors(peer):
                under_way[0].wait()

    def receive(self, parcel: int, microbatch: int, peer: int) -> torch.Tensor:
        """The tensor of a parcel, as its maker laid it out."""
        shape, strides, dtype = self.facts["layouts"][str(self.facts["parcels"][parcel]["value"])]
        tensor = torch.empty_strided(tuple(shape), tuple(strides), dtype=getattr(torch, dtype))
        if tensor.numel():
            self.do(dist.irecv, tensor, parcel * self.count + microbatch, peer)
        return tensor

    def share(self, number: int, tensor: torch.Tensor, peer: int, sends: bool) -> None:
        """Brings a tensor to another rank, or takes it from there."""
        tag = len(self.facts["parcels"]) * self.count + number
        self.do(dist.isend if sends else dist.irecv, tensor, tag, peer)

    def begin(self, call: Callable[..., Any], tensor: torch.Tensor, tag: int, peer: int) -> Any:
        """Begins to send or to receive."""
        end = {"group_dst" if call is dist.isend else "group_src": peer}
        with self.peer_errors(peer):
            return call(_flat_bytes(tensor), group=self.group, tag=tag, **end)

    def do(self, call: Callable[..., Any], tensor: torch.Tensor, tag: int, peer: int) -> None:
        """Sends or receives."""
        work = self.begin(call, tensor, tag, peer)
        with self.peer_errors(peer):
            work.wait()

    def meet(self, mine: Mapping[str, str]) -> None:
        """Raises RuntimeError where another rank has another digest under a name of this one."""
        found: list[Any] = [None] * dist.get_world_size(self.group)
        with self.peer_errors():
            dist.all_gather_object(found, dict(mine), group=self.group)
        for name, digest in mine.items():
            for rank, other in enumerate(found):
                if other.get(name, digest) != digest:
                    raise RuntimeError(
                        f"rank {rank} of the pipeline has another {name} than rank {self.rank}: "
                        "give every rank the same package, model and calls"
                    )

    def broadcast_random_state(self, state: torch.Tensor) -> torch.Tensor:
        """The first rank's state of random numbers, of which `state` is this one's."""
        # Threads of the group hold what is broadcast a little longer: it is no tensor's memory.
        shared = torch.frombuffer(bytearray(state.numpy().tobytes()), dtype=torch.uint8)
        with self.peer_errors():
            dist.broadcast(shared, group=self.group, group_src=0)
        return shared

    def peer_errors(self, peer: int | None = None) -> _PeerErrors:
        """Within it an error of the group is told in a sentence; without a `peer` all ranks meet,
        and nobody knows which one is missing."""
        return _PeerErrors(self.rank, peer)


NO_RANK = -1


class _PeerErrors:
    def __init__(self, rank: int, peer: int | None) -> None:
        self.rank, self.peer = rank, peer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, RuntimeError):
            lost = "another rank" if self.peer is None else f"rank {self.peer}"
            raise RuntimeError(
                f"rank {self.rank} of the pipeline has lost {lost}, which has ended or "
                f"cannot be reached: the step is not done"
            ) from error


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor's storage, as bytes."""
    reach = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    whole = tensor if math.prod(tensor.shape) == reach and tensor.is_contiguous() else None
    if whole is None:
        whole = tensor.as_strided((reach,), (1,))
    return whole.view(-1).view(torch.uint8)
