"""H-Partition: cuts a forward into convex clusters of clusters (Z 3.3).

A hierarchy whose contracted graph has no cycle at any level is one of intervals of a topological
order: opened up from the top, it gives such an order. So the order is chosen first (`order`), and
only neighbors in it are merged (`grouping`). Any set of intervals in a row is convex, and what is
made of it has no cycle, whichever is merged when.
"""

from tightfit.util.code_cache import remove_stale_cache

remove_stale_cache(__file__)
