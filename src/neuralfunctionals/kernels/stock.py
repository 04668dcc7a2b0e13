"""Whether modules compute exactly what a compiled operation does: `is_stock`, `stock_parameters`."""

from torch import Tensor, nn

# A hook, a subclass, a parametrization (which changes the class) or an adapter around a layer computes something else.


def is_stock(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is of exactly this class and has no hooks."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and not any(hooks) and not nn.modules.module._has_any_global_hook()


def stock_parameters(modules: nn.Module, *kinds: type[nn.Module]) -> list[Tensor] | None:
    """Weights and biases in order, if the modules are of these kinds and have the options of the compiled form.

    Args:
        modules: An `nn.Sequential`, or one layer.
        kinds: The expected classes, out of `nn.Linear`, `nn.LayerNorm`, `nn.GELU` and `nn.Dropout`.
    """
    layers = [modules] if len(kinds) == 1 else list(modules.children()) if is_stock(modules, nn.Sequential) else []
    if len(layers) != len(kinds):
        return None
    found: list[Tensor | None] = []
    for layer, kind in zip(layers, kinds, strict=True):
        usual = {
            nn.Dropout: not layer.training or getattr(layer, "p", 0) == 0,
            nn.GELU: getattr(layer, "approximate", "") == "none",
            nn.LayerNorm: getattr(layer, "eps", 0) == 1e-5,
        }
        if not is_stock(layer, kind) or not usual.get(kind, True):
            return None
        if kind in (nn.Linear, nn.LayerNorm):
            found += [layer.weight, layer.bias]  # pyright: ignore
    return None if any(p is None for p in found) else found  # pyright: ignore
