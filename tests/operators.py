"""Which operators of the package run: `operators`."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode


class _Listener(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "neuralfunctionals":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


@contextmanager
def operators() -> Iterator[list[str]]:
    """The names of the compiled operators that run inside the `with` block, in order."""
    with _Listener() as listener:
        yield listener.names
