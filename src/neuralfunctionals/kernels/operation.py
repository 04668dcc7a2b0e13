"""One operation in two forms: `Operation`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor  # pyright: ignore
from torch.autograd import forward_ad
from torch.utils import _pytree

from neuralfunctionals.kernels import choice

Tensors = list[Tensor]
Numbers = list[int]
Shapes = Mapping[str, tuple[Tensor, str]]
"""Tensors by name, each with its axes, such as `"B N C"`, `"B 7 C"` or `"3*C C"`; axes of one name have one size."""


class Operation:
    """An operation in two forms: plain PyTorch, and C++ with its own gradient in float32 on the CPU.

    The compiled form is an operator of `torch.library`, so that `torch.compile` keeps it as one node. Second
    derivatives and batched gradients of the output use the gradient of the plain form; the transforms of
    `torch.func`, forward-mode gradients and tracing use the plain form from the start.

    Args:
        name: Name of the operator.
        source: The C++ file, one of `choice.KERNELS`.
        plain: The plain form.
        shapes: The floating-point tensors by name, with their axes; sizes of `C`, `D` and `E` are multiples of 16.
        forward: Computes the result and the values kept for the backward pass.
        backward: Computes the gradients of all floating-point tensors.
        kept_shape: Shape of the values kept for the backward pass.
    """

    def __init__(
        self,
        name: str,
        source: str,
        *,
        plain: Callable[[Tensors, Numbers], Tensor],
        shapes: Callable[[Tensors, Numbers], Shapes],
        forward: Callable[[Tensors, Numbers, Tensor, Tensor], None],
        backward: Callable[[Tensor, Tensor, Tensors, Numbers, Tensors], None],
        kept_shape: Callable[[Tensors], tuple[int, ...]] = lambda tensors: (0,),
    ) -> None:
        self.name, self.source = name, source
        self._plain, self._shapes = plain, shapes

        def new_results(tensors: Tensors, keep: bool) -> tuple[Tensor, Tensor]:
            return torch.empty_like(tensors[0]), tensors[0].new_empty(kept_shape(tensors) if keep else (0,))

        @torch.library.custom_op(f"neuralfunctionals::{name}", mutates_args=())
        def operator(tensors: list[Tensor], numbers: list[int], keep: bool) -> tuple[Tensor, Tensor]:
            y, kept = new_results(tensors, keep)
            forward(tensors, numbers, y, kept)
            return y, kept

        @torch.library.custom_op(f"neuralfunctionals::{name}_backward", mutates_args=())
        def operator_backward(
            gradient: Tensor, kept: Tensor, tensors: list[Tensor], numbers: list[int]
        ) -> list[Tensor]:
            results = [torch.empty_like(t) for t in _floating(tensors)]
            backward(gradient.contiguous(), kept, tensors, numbers, results)
            return results

        def keep_inputs(ctx, inputs, output) -> None:
            tensors, ctx.numbers, _ = inputs
            ctx.save_for_backward(output[1], *tensors)
            ctx.mark_non_differentiable(output[1])
            ctx.set_materialize_grads(False)

        def differentiate(ctx, gradient: Tensor | None, _):
            kept, *tensors = ctx.saved_tensors
            found: Sequence[Tensor | None] = [None] * len(tensors)
            again = torch.is_grad_enabled()  # to be differentiated again
            if gradient is not None and (again or is_legacy_batchedtensor(gradient)):
                with torch.enable_grad():
                    # Views: one input may be computed from another, whose gradient must not include that path.
                    views = [t.view_as(t) for t in tensors]
                    y = plain(views, ctx.numbers)
                needed = [t for t in views if t.requires_grad]
                results = iter(torch.autograd.grad(y, needed, gradient, create_graph=again))
                found = [next(results) if t.requires_grad else None for t in views]
            elif gradient is not None:
                results = iter(operator_backward(gradient, kept, tensors, ctx.numbers))
                found = [next(results) if t.is_floating_point() else None for t in tensors]
            return found, None, None

        operator.register_fake(lambda tensors, numbers, keep: new_results(tensors, keep))
        operator_backward.register_fake(
            lambda gradient, kept, tensors, numbers: [torch.empty_like(t) for t in _floating(tensors)]
        )
        operator.register_autograd(differentiate, setup_context=keep_inputs)
        operator.register_vmap(_one_by_one(operator))
        operator_backward.register_vmap(_one_by_one(operator_backward))
        self._operator = operator

    def __call__(
        self, tensors: Tensors | None, numbers: Numbers, otherwise: Callable[[], Tensor] | None = None
    ) -> Tensor:
        """Computes the operation in the chosen form, if possible.

        Args:
            tensors: The inputs; None if the modules are not the standard ones.
            numbers: Sizes that are not given by the shapes.
            otherwise: The plain form; defaults to the operation's own.
        """
        form = choice.chosen_form()
        reason = "plain kernels are requested" if form == "plain" else self._why_plain(tensors, numbers)
        if tensors is not None and reason is None:
            keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
            return self._operator([t.contiguous() for t in tensors], numbers, keep)[0]
        if form == "compiled" and not torch.compiler.is_compiling():
            choice.warn_once(f"Using the plain form of {self.name}: {reason}.")
        if otherwise is not None:
            return otherwise()
        assert tensors is not None
        return self._plain(tensors, numbers)

    def _why_plain(self, tensors: Tensors | None, numbers: Numbers) -> str | None:
        if tensors is None:
            return "its modules have hooks, dropout, parametrizations, other classes or unsupported options"
        if torch.is_autocast_enabled("cpu"):
            return "autocast is on"
        if not torch.compiler.is_compiling() and (
            torch.jit.is_tracing() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0  # pyright: ignore
        ):
            return "a transform of torch.func, a forward-mode gradient or a trace needs it"
        return _why_unfit(self._shapes(tensors, numbers)) or (
            None if choice.is_ready(self.source) else f"{self.source}.cpp is not built"
        )


def _why_unfit(shapes: Shapes) -> str | None:
    """Why the C++ code cannot take one of the tensors; None if it can take all."""
    sizes: dict[str, int] = {}
    for name, (tensor, axes) in shapes.items():
        if not choice.is_computable(tensor):
            return f"{name} is not a plain float32 tensor on the CPU"
        names = axes.split()
        if tensor.dim() != len(names):
            return f"{name} has shape {tuple(tensor.shape)} instead of ({axes})"
        for axis, size in zip(names, tensor.shape, strict=True):
            factor, _, letter = axis.rpartition("*")
            if size != int(factor or 1) * (int(letter) if letter.isdigit() else sizes.setdefault(letter, size)):
                return f"{name} has shape {tuple(tensor.shape)} instead of ({axes})"
            if letter in ("C", "D", "E") and size % choice.PANEL:
                return f"{name} has {size} channels, which is not a multiple of {choice.PANEL}"
    return None


def _floating(tensors: Tensors) -> Tensors:
    return [t for t in tensors if t.is_floating_point()]


def _one_by_one(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of `vmap` for an operator without batching: one call per element."""

    def run(info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
        leaves, tree = _pytree.tree_flatten(arguments)
        dims = _pytree._broadcast_to_and_flatten(in_dims, tree, is_leaf=lambda d: d is None)
        assert dims is not None
        calls = []
        for n in range(info.batch_size):
            chosen = [x if d is None else x.select(d, n).contiguous() for x, d in zip(leaves, dims, strict=True)]
            calls.append(operator(*_pytree.tree_unflatten(chosen, tree)))
        results = [torch.stack(parts) for parts in zip(*calls, strict=True)]
        return (results, [0] * len(results)) if isinstance(calls[0], list) else (tuple(results), (0,) * len(results))

    return run
