"""Choice between the plain and the compiled form, and the compiled libraries: `use`, `build`, `prepare`, `library`,
`call`.

`NF_KERNELS` or `use` chooses the form: `auto` uses the compiled one if possible, `plain` never uses it, and `compiled`
warns when it is not possible. Libraries are built when a layer that can use them is created, or in advance by
`nf build`, never inside `forward`.
"""

import ctypes
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from neuralfunctionals import native
from neuralfunctionals.errors import UserError

Form = Literal["auto", "plain", "compiled"]

KERNELS: dict[str, tuple[str, ...]] = {
    "block": ("-fopenmp",),
    "neuron_update": ("-fopenmp",),
    "siren_fit": (),
    "cnn_training": (),
}
"""The C++ files of this folder and the compiler options of each."""
PANEL = 16
"""Numbers of channels must be multiples of this."""

_form: ContextVar[Form | None] = ContextVar("form", default=None)
_libraries: dict[tuple[str, bool], ctypes.CDLL | None] = {}
"""Libraries by name and by whether they may be built; None if this process could not find or build one."""
_lock = threading.Lock()
_warned: set[str] = set()


@contextmanager
def use(form: Form) -> Iterator[None]:
    """Chooses the form of all operations inside a `with` block.

    A graph of `torch.compile` keeps the form with which it was traced.

    Args:
        form: `"auto"`, `"plain"` or `"compiled"`. The last builds missing libraries first, and warns if an operation
            has to use its plain form, with the reason.

    Example:
        >>> with use("plain"):
        ...     print(chosen_form())
        plain
    """
    if form not in get_args(Form):
        raise UserError(f"Expected kernels 'auto', 'plain' or 'compiled', but got {form!r}.")
    if form == "compiled":
        build()
    token = _form.set(form)
    try:
        yield
    finally:
        _form.reset(token)


@torch.compiler.assume_constant_result
def chosen_form() -> Form:
    """The form chosen by `use` or `NF_KERNELS`."""
    form = _form.get() or os.environ.get("NF_KERNELS") or "auto"
    if form not in get_args(Form):
        raise UserError(f"Expected NF_KERNELS to be auto, plain or compiled, but got '{form}'.")
    return form  # pyright: ignore[reportReturnType]


def build(names: Sequence[str] = tuple(KERNELS)) -> dict[str, bool]:
    """Compiles libraries that are not yet in the cache; this takes some seconds per file.

    Libraries that this process could not build before are tried again.

    Returns:
        For each name, whether its compiled form can be used; if not, a warning gives the reason.
    """
    for name in names:
        if _libraries.get((name, True)) is None:
            _libraries.pop((name, True), None)
    return {name: library(name, build=True) is not None for name in names}


def prepare(name: str, parameters: Sequence[Tensor]) -> None:
    """Builds a library for a layer with these parameters, if such a layer can use it."""
    if chosen_form() != "plain" and all(is_computable(p) and p.shape[-1] % PANEL == 0 for p in parameters):
        library(name, build=True)


def is_computable(tensor: Tensor) -> bool:
    """Whether C++ code can access the values of a tensor."""
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return is_plain and tensor.device.type == "cpu" and tensor.dtype == torch.float32


@torch.compiler.assume_constant_result
def is_ready(name: str) -> bool:
    """Whether a library is available; never compiles it."""
    return library(name) is not None


def library(name: str, *, build: bool = False) -> ctypes.CDLL | None:
    """A compiled library; None, with one warning, if there is none.

    Args:
        name: One of `KERNELS`.
        build: Whether to compile it if needed.
    """
    if (name, build) in _libraries:
        return _libraries[name, build]
    with _lock:
        if (name, build) not in _libraries:
            found = _libraries[name, build] = _load(name, build=build)
            if build or found is not None:  # then it makes no difference whether it may be built
                _libraries[name, not build] = found
        return _libraries[name, build]


def _load(name: str, *, build: bool) -> ctypes.CDLL | None:
    source = Path(__file__).with_name(f"{name}.cpp")
    try:
        found = native.load_library(source, *KERNELS[name], build=build)
    except OSError as error:
        warn_once(f"Using plain PyTorch, which is slower than {source.name}: {error}")
        return None
    if found is None and native.find_compiler() is None:
        warn_once(
            "Using plain PyTorch, which is slower than compiled kernels: there is no C++ compiler. "
            "Install g++ or clang++, or set CXX; NF_KERNELS=plain silences this warning."
        )
    elif found is None:
        warn_once(f"Using plain PyTorch instead of {source.name}, which is not built. Run 'nf build' once.")
    return found


def choose_engine(engine: str, kernel: str, *, suits: bool, needs: str) -> Literal["native", "torch"]:
    """The engine of a training loop: `"native"`, the compiled one, or `"torch"`.

    Args:
        engine: The user's choice; `"auto"` uses the native engine if possible.
        kernel: The library of the native engine.
        suits: Whether the native engine supports the task.
        needs: What it needs besides a compiler, for the message.
    """
    if engine not in ("auto", "native", "torch"):
        raise UserError(f"Expected the engine to be 'auto', 'native' or 'torch', but got {engine!r}.")
    wanted = engine == "native" or (engine == "auto" and chosen_form() != "plain")
    usable = wanted and suits and library(kernel, build=True) is not None
    if engine == "native" and not usable:
        raise UserError(
            f"The native engine needs a C++ compiler (g++ or clang++; or set CXX) and {needs}. "
            "Use engine='torch', or 'auto' to use whichever works."
        )
    return "native" if usable else "torch"


def warn_once(text: str) -> None:
    """Warns, unless this process has already given the same warning."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=2)


def call(kernel: str, function: str, *arguments: Any) -> int:
    """Calls a function of a compiled library and returns its status.

    Args:
        kernel: One of `KERNELS`, already built.
        function: Its name.
        arguments: Tensors and arrays, which must be contiguous, lists of tensors or of integers, integers of 64 bits;
            other numbers as objects of `ctypes`.
    """
    compiled = library(kernel)
    assert compiled is not None
    status = getattr(compiled, function)(*map(_as_c, arguments))
    if status == 1:
        raise MemoryError(f"Not enough memory for the scratch space of {kernel}.cpp.")
    return status


def _as_c(argument: Any) -> Any:
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if isinstance(argument, np.ndarray):
        assert argument.flags.c_contiguous
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, Tensor):
        assert argument.is_contiguous()
        return ctypes.c_void_p(argument.data_ptr())
    if not isinstance(argument, Sequence):
        return argument
    if argument and isinstance(argument[0], Tensor):
        assert all(t.is_contiguous() for t in argument)
        return (ctypes.c_void_p * len(argument))(*(t.data_ptr() for t in argument))
    return (ctypes.c_int64 * len(argument))(*argument)
