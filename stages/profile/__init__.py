"""Times each distinct op of a graph once, with its memory."""
