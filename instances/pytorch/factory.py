"""Import of users' models, ``module:factory`` or ``file.py:factory``, with their inputs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ..common.errors import InputError, quote
from .tracing.traced import reason_of

#: Most numbers in a generated input.
MOST_NUMBERS = 1 << 30


@dataclass(frozen=True)
class Made:
    """A model with its inputs."""

    model: nn.Module  # model, args, kwargs: ``model(*args, **kwargs)`` runs one microbatch
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    # positional and named inputs of the microbatches to run, the first one included
    microbatches: Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]


def make(
    reference: str,
    *,
    batch: int | None = None,
    shape: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> Made:
    """Import the factory that `reference` names and call it.

    The reference is ``package.module:name`` or ``path/to/file.py:name``; the name is a function or
    class that returns a model or ``(model, inputs)``, or a model. Inputs are one tensor, a tuple of
    positional ones, or a dictionary of named ones; or an iterator of such, a microbatch each.
    Inputs that are given once are repeated for ever. `batch` is passed to the factory if it takes
    it, and used, with the `shape` of one sample such as ``3x224x224``, for generated inputs.
    InputError if there is no such module, file or name, it fails, or no inputs are known.
    """
    factory = _find(reference)
    takes_batch = _takes_batch(factory)
    if isinstance(factory, nn.Module):
        made: Any = factory
    elif callable(factory):
        missing = [key for key, value in _parameters(factory).items() if _must_be_given(value)]
        if [key for key in missing if key != "batch" or batch is None]:
            remedy = "write a function without arguments (or with `batch` alone) that calls it"
            if missing == ["batch"]:
                remedy = "give --batch, such as --batch 8"
            raise InputError(f"{reference}: it wants {', '.join(missing)}; {remedy}")
        with _users_code(reference):
            made = factory(batch=batch) if takes_batch and batch is not None else factory()
    else:
        raise InputError(f"{reference}: it is no function, class or model")
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{reference}: it returned {type(model).__name__}; return a torch.nn.Module, or "
            "(module, inputs)"
        )
    if inputs is None:
        inputs = _inputs_for(model, reference, batch or 1, shape)
    elif batch is not None and not takes_batch:
        raise InputError(
            f"--batch: {reference} returns its inputs itself; give it a parameter `batch`"
        )
    elif shape is not None:
        raise InputError(f"--input: {reference} returns its inputs itself; leave --input out")
    return made_of(model, inputs, dtype, device)


def call_factory(reference: str) -> Any:
    """Return what the function without arguments that `reference` names returns."""
    factory = _find(reference)
    if not callable(factory) or any(map(_must_be_given, _parameters(factory).values())):
        raise InputError(f"{reference}: it must be a function without arguments")
    with _users_code(reference):
        return factory()


def call_text(reference: str, batch: int | None = None) -> str:
    """Return the expression by which `make` gets the model, such as ``make(batch=8)``."""
    name = reference.rpartition(":")[2]
    factory = _find(reference)
    if isinstance(factory, nn.Module):
        return name
    return f"{name}(batch={batch})" if _takes_batch(factory) and batch is not None else f"{name}()"


def _takes_batch(factory: Any) -> bool:
    return callable(factory) and "batch" in _parameters(factory)


def made_of(
    model: nn.Module, inputs: Any, dtype: str | None = None, device: str | None = None
) -> Made:
    """Return a model with its inputs, or an iterator of them, converted and moved."""
    kind = None if dtype is None else getattr(torch, dtype, None)
    if dtype is not None and not isinstance(kind, torch.dtype):
        raise InputError(f"--dtype: {dtype!r} is none of torch's types, such as bfloat16")

    def place(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.to(kind) if kind is not None and value.is_floating_point() else value
        return value.to(device) if device is not None else value

    try:
        model = model.to(kind) if kind is not None else model
        model = model.to(device) if device is not None else model
        given = inputs if isinstance(inputs, Iterator) else repeat(inputs)
        microbatches = (_called_with(tree_map(place, one)) for one in given)
        first = next(microbatches, None)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        options = " ".join(f"--{k} {v}" for k, v in (("dtype", dtype), ("device", device)) if v)
        raise InputError(f"{options}: {reason_of(error, model)}") from None
    if first is None:
        raise InputError("model: the iterator of its inputs is empty; it must give one at least")
    return Made(model, *first, chain([first], microbatches))


def _called_with(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def _find(reference: str) -> Any:
    place, colon, name = reference.rpartition(":")
    if not colon or not place or not name:
        raise InputError(
            f"{reference}: name the model as module:factory or file.py:factory, such as "
            "my_model.py:make"
        )
    with _users_code(place):
        module = _from_file(Path(place)) if place.endswith(".py") else _from_name(place)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if _may_be_a_factory(value, module)]
        raise InputError(f"{place}: it has no {name!r}; it has {', '.join(own) or 'no factory'}")
    return getattr(module, name)


def _may_be_a_factory(value: Any, module: Any) -> bool:
    own = getattr(value, "__module__", "") == module.__name__
    return isinstance(value, nn.Module) or (callable(value) and own)


@contextmanager
def _users_code(place: str) -> Iterator[None]:
    """Turn any failure into an InputError with its place in the user's files."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may fail in any way
        frame = extract_tb(error.__traceback__)[-1]
        where = f" ({Path(frame.filename).name}:{frame.lineno})"
        raise InputError(
            f"{place}: it fails: {reason_of(error, nn.Module())}"
            + (where if not isinstance(error, SyntaxError) else "")
        ) from None


def _from_file(path: Path) -> Any:
    """Import a file, in a package as one of its modules, so that relative imports work."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; check the path")
    folder, name = path.absolute().parent, path.stem
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        folder, name = folder.parent, f"{folder.name}.{name}"
    sys.path.insert(0, str(folder))  # what it imports lies beside it
    if "." in name:
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _from_name(name: str) -> Any:
    sys.path.append("")  # at the end: what is installed is not taken from the working directory
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: no module named {error.name!r}; install it, or name a file"
        ) from None


def _parameters(factory: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(factory).parameters
    except (TypeError, ValueError):  # written in C
        return {}


def _must_be_given(parameter: inspect.Parameter) -> bool:
    kinds = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in kinds


def _made_up(*sizes: int) -> torch.Tensor:
    if min(sizes) < 1 or math.prod(sizes) > MOST_NUMBERS:
        text = " × ".join(quote(size) for size in sizes[:6])
        raise InputError(
            f"--batch, --input: a batch of {text}; sizes must be at least 1, and all together at "
            f"most {MOST_NUMBERS} numbers"
        )
    return torch.randn(*sizes)


def _inputs_for(model: nn.Module, reference: str, batch: int, shape: str | None) -> Any:
    """Return generated inputs: of the given shape, by a first linear layer, or `dummy_inputs`."""
    if shape is not None:
        try:
            sizes = [int(word) for word in shape.split("x")]
        except ValueError:
            raise InputError(f"--input: {shape!r} is no shape such as 3x224x224") from None
        return _made_up(batch, *sizes)
    first = next((m for m in model.modules() if next(m.parameters(False), None) is not None), None)
    if isinstance(first, nn.Linear):
        return _made_up(batch, first.in_features)
    ready = getattr(model, "dummy_inputs", None)
    if isinstance(ready, Mapping):
        return dict(ready)
    raise InputError(
        f"{reference}: it returns a model without inputs; return (model, inputs), or give the "
        "shape of one sample: --input 3x224x224"
    )
