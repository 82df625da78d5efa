"""Which module of a model is running, forward and in autograd's backward pass, and what each module gave.

A call is told apart by the name of its module in the tree: `blocks.3.attn`, and `blocks.3.attn/2` where the same module
runs a second time. A step of the backward pass belongs to the module whose forward pass made it: autograd numbers both
alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Output:
    """What a module gave: `gradient` is filled in while the backward pass runs."""

    def __init__(self, module: str, depth: int, tensor: torch.Tensor) -> None:
        self.module, self.depth, self.tensor = module, depth, tensor
        self.gradient: torch.Tensor | None = None
        if tensor.requires_grad:
            tensor.register_hook(self._found)  # type: ignore[no-untyped-call]

    def _found(self, gradient: torch.Tensor) -> None:
        self.gradient = gradient


class ModuleCalls:
    """The calls of a model's modules, from outside in, while `watched`.

    `outputs` are those of blocks, in the order in which they end: of modules that are made of modules, and of those
    that the model itself calls. The model's own output is none of them.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.outputs: list[Output] = []
        self._model = model
        self._running: list[str] = []
        self._uses: dict[str, int] = {}
        self._marks: list[tuple[int, str]] = []
        """From this number of autograd's on, what is computed belongs to this module."""

    @property
    def running(self) -> str:
        """The innermost module that runs, "" for the model itself."""
        return self._running[-1] if self._running else ""

    def of_backward(self) -> str:
        """The module whose forward pass made the step of the backward pass that is being computed."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return ""
        at = bisect_right(self._marks, node._sequence_nr(), key=lambda mark: mark[0])
        return self._marks[at - 1][1] if at else ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Follow the calls of every module of the model."""
        handles = []
        for name, module in self._model.named_modules():
            if name:
                handles += [
                    module.register_forward_pre_hook(self._begin(name)),
                    module.register_forward_hook(self._end(len(list(module.children())) > 0), always_call=True),
                ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, name: str) -> Callable[..., None]:
        def begin(module: torch.nn.Module, inputs: Any) -> None:
            if not _in_backward():
                self._uses[name] = self._uses.get(name, 0) + 1
            use = self._uses.get(name, 1)
            self._running.append(name if use == 1 else f"{name}/{use}")
            self._mark()

        return begin

    def _end(self, made_of_modules: bool) -> Callable[..., None]:
        def end(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            name = self._running.pop()
            if isinstance(output, (tuple, list)) and output:
                output = output[0]
            block = made_of_modules or not self._running
            if block and isinstance(output, torch.Tensor) and not _in_backward():
                self.outputs.append(Output(name, len(self._running), output))
            self._mark()

        return end

    def _mark(self) -> None:
        self._marks.append((torch.autograd._get_sequence_nr(), self.running))  # type: ignore[attr-defined]


def _in_backward() -> bool:
    """Whether autograd is at work: then a module runs again, as checkpointing has it."""
    return torch._C._current_autograd_node() is not None
