"""What a forward pass must leave as it is: a captured model does the same in every step.

A pass that counts its calls, draws from a generator or makes a module would do something else later, and what was
captured would be another program without a word. So all of this is compared before and after: the tree of modules,
parameters and buffers; plain attributes (numbers, text, and lists of those) of modules; plain globals of the file;
and the generators of Python, numpy and torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.modules import module as hooks

from bitwitness.kernels.errors import KernelError

_PLAIN = (bool, int, float, str, bytes, type(None))
_LARGEST = 1000  # elements of a list that is compared


@contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Inside, a forward pass may run. Raises KernelError where it changed what the next one would do."""
    before = _Seen(model)
    handles = [
        hooks.register_module_parameter_registration_hook(_refuse("parameter")),
        hooks.register_module_module_registration_hook(_refuse("module")),
        hooks.register_module_buffer_registration_hook(_refuse("buffer")),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    before.compare(_Seen(model))


def _refuse(what: str) -> Any:
    def refuse(module: torch.nn.Module, name: str, value: Any) -> None:
        raise KernelError(f"forward makes or changes the {what} {name}: the constructor declares all there is")

    return refuse


class _Seen:
    """What there is between two passes."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.tree = [
            *((name, id(module)) for name, module in model.named_modules(remove_duplicate=False)),
            *((name, id(parameter)) for name, parameter in model.named_parameters(remove_duplicate=False)),
            *((name, id(buffer)) for name, buffer in model.named_buffers(remove_duplicate=False)),
        ]
        self.attributes = {
            f"self.{name}.{key}" if name else f"self.{key}": value
            for name, module in model.named_modules()
            for key, value in _plain_of(vars(module)).items()
        }
        self.globals = _plain_of(getattr(type(model).forward, "__globals__", {}))
        self.generators = {
            "random": repr(random.getstate()),
            "numpy.random": repr(np.random.get_state(legacy=False)["state"]),
            "torch": torch.get_rng_state().numpy().tobytes(),
        }

    def compare(self, after: _Seen) -> None:
        for name, state in self.generators.items():
            if state != after.generators[name]:
                raise KernelError(
                    f"forward draws from the generator of {name}: random numbers come from nn.Dropout alone"
                )
        if self.tree != after.tree:
            raise KernelError(
                "forward changes the modules or parameters of the model: the constructor declares all there is"
            )
        for before, now in ((self.attributes, after.attributes), (self.globals, after.globals)):
            changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
            if changed:
                raise KernelError(
                    f"forward changes {changed[0]}: a step does the same whichever one it is; keep such a thing in a "
                    "local name, or make it in the constructor"
                )


def _plain_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The values that are numbers, text and lists of those, as text; others are left out."""
    return {
        name: repr(value) for name, value in list(values.items()) if not name.startswith("__") and _is_plain(value, 3)
    }


def _is_plain(value: Any, depth: int) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if depth == 0 or not isinstance(value, (list, tuple, set, frozenset, dict)) or len(value) > _LARGEST:
        return False
    inside = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(item, depth - 1) for item in inside)
