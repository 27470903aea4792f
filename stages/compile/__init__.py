"""The saved values of `torch.compile`: a partitioner of joint graphs that keeps a peak in bytes."""

from tightfit.util.code_cache import remove_stale_cache

remove_stale_cache(__file__)
