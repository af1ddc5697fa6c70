"""Answers of implementations: how they are checked, compared, and passed from one process to another."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kernels.harness import lending

Reply = dict[str, Any]
LEND_BYTES = 1 << 20
"""Answers of at least this size stay on the device, where the judge's process copies them. Smaller ones are passed as
files."""
PIECE_BYTES = 1 << 28


def answer_leaves(answer: Any) -> list[Any]:
    """The leaves of an answer: all parts that are no tuple, list or mapping."""
    if isinstance(answer, dict):
        return [leaf for one in answer.values() for leaf in answer_leaves(one)]
    if isinstance(answer, (tuple, list)):
        return [leaf for one in answer for leaf in answer_leaves(one)]
    return [answer]


def unusable_reason(leaf: Any, device: torch.device) -> str:
    """Why a leaf of an answer cannot be used; empty where it can."""
    if isinstance(leaf, (bool, int, float)):
        return ""
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
        return f"untrusted: its output is a {type(leaf).__name__}, not a plain tensor"
    if leaf.layout is not torch.strided or leaf.device.type == "meta":
        return f"untrusted: its output is {leaf.layout} on {leaf.device}, not plain memory that holds numbers"
    if leaf.device.type != device.type:
        return f"its output is on {leaf.device}, not on {device}"
    return ""


def answers_equal(one: Any, two: Any) -> bool:
    """Whether two answers are equal in every bit."""
    a, b = answer_leaves(one), answer_leaves(two)
    return len(a) == len(b) and all(
        bytes_equal(bit_integers(x), bit_integers(y)) if isinstance(x, torch.Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


def bytes_equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes. The comparison needs little extra memory."""
    return one.shape == two.shape and all(
        torch.equal(a, b) for a, b in zip(one.split(PIECE_BYTES), two.split(PIECE_BYTES), strict=True)
    )


def bit_integers(one: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor as integers, among which NaN equals itself."""
    return one.detach().contiguous().reshape(-1).view(torch.uint8)


def spoil_memory(one: Any) -> None:
    """Fills memory for an answer with values that are no answer."""
    if isinstance(one, torch.Tensor):
        one.fill_(float("nan") if one.is_floating_point() or one.is_complex() else 1 if one.dtype is torch.bool else 77)


def synchronize(device: torch.device) -> None:
    """Waits until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_cached_memory(device: torch.device) -> None:
    """Frees cached memory that is not in use, as other processes need it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def size_of(answer: Any) -> int:
    """The number of bytes of all tensors of an answer."""
    return sum(one.numel() * one.element_size() for one in answer_leaves(answer) if isinstance(one, torch.Tensor))


def stack(answers: Sequence[Any], join: Callable[[list[torch.Tensor]], torch.Tensor] = torch.stack) -> Any:
    """Answers of one structure as one, in which each leaf has them all along a new first dimension; with `torch.cat`
    stacked ones are joined. Raises `ValueError` or `RuntimeError` if their structures, shapes or types differ."""
    first = answers[0]
    if isinstance(first, torch.Tensor):
        return join([_tensor(one) for one in answers])
    if isinstance(first, (bool, int, float)):
        return torch.tensor([one for one in answers if isinstance(one, (bool, int, float))])
    if len({len(one) for one in answers}) > 1:
        raise ValueError("the answers have other numbers of parts")
    if isinstance(first, dict):
        return {key: stack([one[key] for one in answers], join) for key in first}
    return [stack(parts, join) for parts in zip(*answers, strict=True)]


def repeats_of(answers: Any) -> list[bool]:
    """For each of several stacked answers, whether it equals the one before it in every bit."""
    leaves = [one for one in answer_leaves(answers) if isinstance(one, torch.Tensor)]
    count = len(leaves[0]) if leaves else 0
    equal = torch.ones(max(0, count - 1), dtype=torch.bool)
    for leaf in leaves if count > 1 else ():
        rows = leaf.detach().contiguous().reshape(count, leaf[0].numel()).view(torch.uint8)
        wide = torch.int64 if rows.shape[1] % 8 == 0 else torch.uint8
        equal &= (rows.view(wide)[1:] == rows.view(wide)[:-1]).all(1).cpu()
    return [False, *equal.tolist()][:count]


def _tensor(one: Any) -> torch.Tensor:
    if not isinstance(one, torch.Tensor):
        raise ValueError("an answer is no tensor where another is one")
    return one.detach()


def write_answer(answer: Any, folder: str) -> Reply:
    """Writes an answer: returns its structure, and stores a file for each tensor."""

    def keep(leaf: torch.Tensor, number: int) -> str:
        path = Path(folder) / f"{number}.bin"
        bit_integers(leaf.cpu()).numpy().tofile(path)
        return str(path)

    return taken_apart(answer, keep)


def lend_answer(answer: Any) -> tuple[Reply, list[torch.Tensor]]:
    """An answer as its structure with the address of each tensor on the device, and the tensors themselves. The caller
    keeps them until the judge has copied them."""
    kept: list[torch.Tensor] = []

    def keep(leaf: torch.Tensor, _number: int) -> list[Any]:
        kept.append(leaf.contiguous())
        return lending.lend_tensor(kept[-1])

    return taken_apart(answer, keep), kept


def taken_apart(answer: Any, keep: Callable[[torch.Tensor, int], Any]) -> Reply:
    """The structure of an answer, and for each tensor its type, its shape, and the result of `keep`."""
    files: list[Any] = []
    return {"tree": tree_of(answer, files, keep), "files": files}


def tree_of(value: Any, files: list[Any], keep: Callable[[torch.Tensor, int], Any]) -> Any:
    """The structure of an answer; its tensors are added to `files`."""
    if isinstance(value, dict):
        return {"map": {str(key): tree_of(one, files, keep) for key, one in value.items()}}
    if isinstance(value, (tuple, list)):
        return {"list": [tree_of(one, files, keep) for one in value]}
    leaf = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value)
    files.append([keep(leaf, len(files)), str(leaf.dtype).removeprefix("torch."), list(leaf.shape)])
    return len(files) - 1


def read_tensor(entry: list[Any], device: torch.device) -> torch.Tensor:
    """A tensor from its file, or from another process's memory. That process may have written anything there, so the
    bytes are only copied and never interpreted as code."""
    place, dtype, shape = entry
    kind = getattr(torch, str(dtype))
    count = int(torch.Size(shape).numel())
    if not count:
        return torch.empty(shape, dtype=kind)
    size = count * kind.itemsize
    if isinstance(place, list):
        return lending.borrow_tensor(place, size, device).view(kind).reshape(shape)
    return read_bytes(str(place), size).view(kind).reshape(shape)


def read_bytes(path: str, size: int) -> torch.Tensor:
    """The content of a file, which must be one itself and no link to another. Raises `ValueError` and `OSError`."""
    content = torch.empty(size, dtype=torch.uint8)
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.readinto(content.numpy()) != size:
            raise ValueError("untrusted: a file of its answer is not what it says")
    return content


def rebuild_answer(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """The answer from its structure and its tensors: the reverse of `written`."""
    if isinstance(tree, dict) and "map" in tree:
        return {key: rebuild_answer(one, tensors) for key, one in tree["map"].items()}
    if isinstance(tree, dict):
        return [rebuild_answer(one, tensors) for one in tree["list"]]
    return tensors[int(tree)]
