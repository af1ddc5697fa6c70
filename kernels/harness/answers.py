"""Answers of implementations on their way from one process to another: looked at, kept, compared, written, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

Reply = dict[str, Any]


def leaves(answer: Any) -> list[Any]:
    """Every part of an answer that is no tuple, list or mapping."""
    if isinstance(answer, dict):
        return [leaf for one in answer.values() for leaf in leaves(one)]
    if isinstance(answer, (tuple, list)):
        return [leaf for one in answer for leaf in leaves(one)]
    return [answer]


def strange(leaf: Any, device: torch.device) -> str:
    """Why a part of an answer is none, or nothing."""
    if isinstance(leaf, (bool, int, float)):
        return ""
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        return f"untrusted: its output is a {type(leaf).__name__}, not a plain tensor"
    if leaf.layout is not torch.strided or leaf.device.type == "meta":
        return f"untrusted: its output is {leaf.layout} on {leaf.device}, not memory with an answer in it"
    if leaf.device.type != device.type:
        return f"its output is on {leaf.device}, not on {device}"
    return ""


def same(one: Any, two: Any) -> bool:
    """Whether two answers are the same to the last bit."""
    a, b = leaves(one), leaves(two)
    return len(a) == len(b) and all(
        torch.equal(bits(x), bits(y)) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


def bits(one: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, as whole numbers: NaN equals itself there."""
    return one.detach().contiguous().reshape(-1).view(torch.uint8)


def spoil(one: Any) -> None:
    """Fill memory for an answer with what is no answer."""
    if isinstance(one, torch.Tensor):
        one.fill_(float("nan") if one.is_floating_point() or one.is_complex() else 1 if one.dtype is torch.bool else 77)


def settle(device: torch.device) -> None:
    """Wait for everything that the device was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def written(answer: Any, folder: str) -> Reply:
    """An answer as its structure and one file for each tensor."""
    files: list[Any] = []

    def keep(leaf: Any) -> int:
        tensor = leaf.detach() if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
        path = Path(folder) / f"{len(files)}.bin"
        bits(tensor.cpu()).numpy().tofile(path)
        files.append([str(path), str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        return len(files) - 1

    def tree(value: Any) -> Any:
        if isinstance(value, dict):
            return {"map": {str(key): tree(one) for key, one in value.items()}}
        if isinstance(value, (tuple, list)):
            return {"list": [tree(one) for one in value]}
        return keep(value)

    return {"tree": tree(answer), "files": files}


def read(told: list[Any]) -> torch.Tensor:
    """A tensor from its file; the file is whatever the other process wrote, so nothing of it is obeyed."""
    path, dtype, shape = told
    kind = getattr(torch, str(dtype))
    count = int(torch.Size(shape).numel())
    if not count:
        return torch.empty(shape, dtype=kind)
    raw = torch.from_file(str(path), size=count * kind.itemsize, dtype=torch.uint8)
    return raw.clone().view(kind).reshape(shape)


def unflattened(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure that `written` took apart."""
    if isinstance(tree, dict) and "map" in tree:
        return {key: unflattened(one, tensors) for key, one in tree["map"].items()}
    if isinstance(tree, dict):
        return [unflattened(one, tensors) for one in tree["list"]]
    return tensors[int(tree)]
