"""stages/trace/canonicalize."""
