"""Plans of a hierarchy of clusters, from the lowest up (Z 3.2.2, 3.4)."""
