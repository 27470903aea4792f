"""Shows a person what happened: one page a model, an index of a run, a trace for Perfetto."""
