"""What generated packages have as `trees.py`: `stages.device.trees`, under the same name."""

from tightfit.stages.device.trees import Tree, read_tree

__all__ = ["Tree", "read_tree"]
