"""Where a parameter begins: its module declares the rule.

A module lists the rules of its parameters in `initial`, name -> Initial. `initialise` draws them as `ledger train` does
(docs/arithmetic.md, A step), so that nobody has to run a model's code to know its state 0. A fresh module outside of
training holds like numbers from torch's generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from bitwitness.kernels.errors import KernelError
from bitwitness.kernels.initial import BOUND, Initial, fill


class Declared(torch.nn.Module):
    """A module that says how its parameters begin."""

    initial: Mapping[str, Initial]

    def reset_parameters(self) -> None:
        """Draw from torch's generator, for use outside of training."""
        for name, parameter in self.named_parameters(recurse=False):
            rule = self.initial[name]
            if parameter.is_meta:
                continue
            if rule.std == 0.0:
                torch.nn.init.constant_(parameter, rule.value)
            else:
                torch.nn.init.trunc_normal_(parameter, std=rule.std, a=-BOUND * rule.std, b=BOUND * rule.std)


def rules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter, Initial]]:
    """Every parameter once, under its first name, with its rule. Raises KernelError where a module declares none."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner, _, own = name.rpartition(".")
        rule = getattr(owners[owner], "initial", {}).get(own)
        if not isinstance(rule, Initial):
            kind = type(owners[owner]).__name__
            raise KernelError(
                f"parameter {name} of {kind} does not say how it begins: use a module of bitwitness.kernels.nn for it"
            )
        yield name, parameter, rule


def initialise(model: torch.nn.Module, seed: int) -> None:
    """Give every parameter the bits that it has in state 0 of a run with this seed."""
    for name, parameter, rule in rules(model):
        fill(parameter.detach().numpy(), rule, seed, name)


def load_parameters(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give every parameter its tensor, by name, tied ones under their first: as a run's weights are named.

    Raises KernelError where a name or a shape is another; then nothing was changed.
    """
    parameters = dict(model.named_parameters())
    odd = sorted(parameters.keys() ^ tensors.keys())
    if odd:
        where = "the tensors" if odd[0] in parameters else "the model"
        raise KernelError(f"{odd[0]} is not in {where}; a model's parameters are named as in the run, tied ones once")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise KernelError(f"{name} has the shape {list(tensors[name].shape)}, in the model {list(parameter.shape)}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
