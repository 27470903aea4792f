"""A model of transformers, made from its configuration without weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tightfit.stages.torch_utils.model_factory import (
    BuiltModel,
    check_factory_result,
    fake_tensor_mode,
)
from tightfit.util.errors import ConfigError, ModelError

LIBRARY = "transformers"


class _LossModel(nn.Module):
    """A model that is trained to predict its own inputs and gives its loss alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the labels, a number."""
        return self.model(input_ids=input_ids, labels=labels).loss


def build_configured_model(
    name: str, config: dict[str, Any], batch: int, tokens: int, dtype: str = ""
) -> BuiltModel:
    """The model of a configuration with tokens as its inputs and labels, and no memory.

    Args:
        name: What transformers calls the kind of model, such as "llama".
        config: The keys of the configuration.
        batch: The samples of a step.
        tokens: The tokens of a sample.
        dtype: That of the parameters, unless given that of the configuration.

    Raises:
        ConfigError: transformers lacks such a model, or does not take the configuration.
        ModelError: The model cannot be made.
    """
    label = f"{LIBRARY}:{name}"
    with fake_tensor_mode() as mode:
        model, vocabulary = _make_model(name, config, label, tokens, dtype)
        words = torch.randint(0, vocabulary, (batch, tokens))
        sample = ((), {"input_ids": words, "labels": words.clone()})
        result = (_LossModel(model).train(), sample, lambda loss: loss)
        built = check_factory_result(result, label, label)
    return BuiltModel(built.model, built.samples, built.loss, mode, label)


def _make_model(
    name: str, given: dict[str, Any], label: str, tokens: int, dtype: str
) -> tuple[nn.Module, int]:
    """The model, and the size of its vocabulary."""
    try:
        import transformers
    except ImportError as error:
        raise ConfigError(f"--model {label}: needs it: pip install 'tightfit[models]'") from error
    keys = {key: value for key, value in given.items() if key != "model_type"}
    said = given.get("model_type", name)
    if said != name:
        raise ConfigError(f"--model {label}: the configuration is of the model type {said!r}")
    try:
        config = transformers.AutoConfig.for_model(name, **{**keys, "use_cache": False})
    except (ValueError, KeyError) as error:
        if name in transformers.CONFIG_MAPPING:
            raise _config_error(label, error) from error
        raise ConfigError(
            f"--model {label}: transformers {transformers.__version__} has no model type {name!r},"
            " use one such as llama, qwen3, mistral or gpt2"
        ) from error
    except Exception as error:
        raise _config_error(label, error) from error
    text = config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    if isinstance(most, int) and tokens > most:
        limit = f"at most {most} (max_position_embeddings)"
        raise ConfigError(f"--tokens {tokens}: {label} takes {limit}")
    auto = next(
        (
            kind
            for kind in (transformers.AutoModelForCausalLM, transformers.AutoModelForMaskedLM)
            if type(config) in kind._model_mapping
        ),
        None,
    )
    if auto is None:
        raise ConfigError(
            f"--model {label}: is no language model of tokens alone: write a function that returns"
            " the model with its inputs, and name it with --factory"
        )
    wanted = dtype or str(config.dtype or "float32").removeprefix("torch.")
    try:
        model: nn.Module = auto.from_config(config)
        return model.to(getattr(torch, wanted)), int(text.vocab_size)
    except Exception as error:
        raise ModelError(f"--config: {label} cannot be made of it: {_first_line(error)}") from error


def _config_error(label: str, error: BaseException) -> ConfigError:
    return ConfigError(f"--config: {label} does not take it: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    """The first line of an error's text, with the next one if it ends in a colon."""
    first, *further = [*map(str.strip, str(error).strip().splitlines()), ""]
    return f"{first} {further[0]}" if first.endswith(":") and further else first or repr(error)
