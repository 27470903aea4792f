"""How long a contestant is likely to take, from the operations and bytes of its steps."""

from __future__ import annotations

from tests.gpu.model_sizes import SIZES

START = 11.0
"""Seconds to import PyTorch, to make CUDA's context and to make the model."""
COMPILING = {"gpt2": 45.0, "llama": 40.0, "llama3": 25.0, "resnet": 45.0}
"""Seconds that the compiler takes for a full size, with sixteen cores."""
EXTRA = {"full": 4 / 3, "selective": 1.15, "saved on the host": 6.0}
"""How much longer a step is than eager's. Saved tensors go over the link twice."""
STEPS = 9
"""Steps before those that are timed."""
SPEED, BANDWIDTH, HASHING = {"resnet": 33e12, "": 450e12}, 2.3e12, 1.2e9
"""Half of the operations a second of an H100, in float32 and bfloat16; bytes a second of its
memory; bytes a second that come to the host and are hashed."""


def parameters(name: str, size: str) -> float:
    """Numbers in a model's products of matrices."""
    given = SIZES[name][size]
    if name == "resnet":
        return 44.5e6 if size == "full" else 1e5
    width, layers, words = given["width"], given["layers"], given["vocabulary"]
    if name == "gpt2":
        return layers * 12.0 * width**2 + width * words
    shared = width * given["groups"] / given["heads"]
    block = 2 * width**2 + 2 * width * shared + 3 * width * given["hidden"]
    return layers * float(block) + width * words * 2


def step_seconds(name: str, size: str) -> float:
    """Seconds of a step of eager on an H100."""
    given = SIZES[name][size]
    if name == "resnet":
        images = given["batch"] * (given["size"] / 224) ** 2
        return images * (3 * 15.6e9 / SPEED[name] + 3 * 180e6 * 3 / BANDWIDTH)
    tokens, width, layers = given["batch"] * given["tokens"], given["width"], given["layers"]
    work = 6 * parameters(name, size) * tokens + 7 * layers * tokens * given["tokens"] * width
    logits = tokens * given["vocabulary"] * 24
    return work / SPEED[""] + (layers * tokens * width * 240 + logits) / BANDWIDTH


def contestant(name: str, size: str, way: str, steps: int, bits: bool) -> float:
    """Seconds of one way to train, in a process of its own."""
    if size != "full":
        return START + (10.0 if way == "compile" else 0.0)
    step = step_seconds(name, size) * EXTRA.get(way, 1.1)
    hashed = 2 * parameters(name, size) / HASHING if bits else 0.0
    compiled = COMPILING[name] if way == "compile" else 0.0
    return START + (STEPS + steps) * step + hashed + compiled
