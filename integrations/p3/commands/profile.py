"""`p3 profile`: times a model layer by layer, and writes what `p3 predict` reads."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from p3.commands.options import UsageError
from p3.engine import P3Error

if TYPE_CHECKING:
    from torch import Tensor, nn

    from p3.profiling import Step


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "profile",
        help="time a model layer by layer, for `p3 predict`",
        description="MODEL is FILE.py:FUNCTION or MODULE:FUNCTION. The function takes nothing and "
        "returns the model (then name an --input), or the model and a function without arguments "
        "that returns the loss of one batch.",
    )
    command.add_argument("model", metavar="MODEL")
    command.add_argument("--input", metavar="SHAPE", help="a batch's, like 32x3x224x224")
    command.add_argument("--samples", type=int, help="in a batch (default: of --input, the first)")
    command.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1 …")
    command.add_argument("--iterations", type=int, default=10)
    command.add_argument("--name", help="the model's, in the file (default: the function's)")
    command.add_argument("--out", type=Path, help="the file to write (default: NAME.json)")
    command.set_defaults(command=_main)


def _main(parsed: argparse.Namespace) -> int:
    if parsed.iterations < 1:
        raise UsageError(f"--iterations {parsed.iterations}: choose 1 or more")
    shape = None if parsed.input is None else _shape(parsed.input)
    samples = parsed.samples or (shape[0] if shape else None)
    if not samples or samples < 1:
        raise UsageError("say how many --samples a batch has, 1 or more")
    try:
        from p3.profiling import profile_model  # noqa: PLC0415 - takes seconds, and needs torch
    except ModuleNotFoundError as error:
        raise P3Error(f"profiling needs PyTorch, and {error}: pip install torch") from error
    name = parsed.name or parsed.model.rpartition(":")[2]
    model, step = _trained(parsed.model, shape, parsed.device)
    made = profile_model(model, step, name=name, samples=samples, iterations=parsed.iterations)
    out = parsed.out or Path(f"{name}.json")
    try:
        made.write(out)
    except OSError as error:
        raise P3Error(f"{out}: {error.strerror}; name another file with --out") from error
    print(
        f"{out}: {len(made.layers)} layers, {made.payload_bytes / 1e6:.4g} MB of gradients, "
        f"{made.compute_s:.4g} s an iteration on {made.source}"
    )
    return 0


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(map(int, text.split("x")))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise UsageError(f"--input {text}: sizes joined by x, like 32x3x224x224")
    return shape


def _trained(text: str, shape: tuple[int, ...] | None, device: str) -> tuple[nn.Module, Step]:
    """The model that `text` names, on `device`, and what computes a batch's loss."""
    import torch  # noqa: PLC0415 - see _main
    from torch import nn  # noqa: PLC0415

    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise P3Error(f"--device {device}: {str(error).splitlines()[0]}") from error
    made = _made(text)
    if isinstance(made, nn.Module):
        if shape is None:
            raise UsageError(f"{text} returns a model alone: name its --input, like 32x3x224x224")
        model, batch = made.to(where), torch.rand(shape, device=where)

        def step() -> Tensor:
            return _sum(model(batch))

        return model, step
    match made:
        case (nn.Module() as whole, step_) if callable(step_):
            return whole.to(where), step_
    raise P3Error(f"{text} returns {type(made).__name__}: a model, or a model and a function")


def _sum(output: object) -> Tensor:
    """Something to go back from."""
    import torch  # noqa: PLC0415 - see _main

    if isinstance(output, torch.Tensor):
        return output.float().sum()
    raise P3Error(
        f"the model's output is {type(output).__name__}, not a tensor: return the model and a "
        "function that computes the loss"
    )


def _made(text: str) -> object:
    """What the named function returns."""
    module, colon, name = text.rpartition(":")
    if not colon or not module or not name:
        raise UsageError(f"MODEL {text}: write FILE.py:FUNCTION or MODULE:FUNCTION")
    try:
        function: object = getattr(_module(module), name)
    except (ImportError, AttributeError, OSError) as error:
        raise P3Error(f"MODEL {text}: {error}") from error
    if not callable(function):
        raise P3Error(f"MODEL {text}: {name} is no function")
    made: object = function()
    return made


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # What stands beside a script can be imported by it.
    sys.path.insert(0, str(path.parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
