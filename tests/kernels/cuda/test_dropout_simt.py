"""The weights that the kernels drop, read from their results on the CPU: those of the Python mask, bit for bit.

With Q of zeros all weights of a row are equal, and with one-hot rows of V or dout each shows where it was kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients, PairBackward
from kernels.attention.cuda.plan.planning import Machine, Problem
from kernels.attention.cuda.plan.posing import Shaping, problem_of, tensor_layout
from kernels.attention.cuda.plan.variants import CHIPS, Combine
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.attention.dropout import Dropout
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

KEYS, HEADS, BATCH = 65, 4, 2
SEEDS = [(0, 0), (2**63 - 1, 2**63 - 1), (-(2**63), 1 << 32)]


@dataclass(frozen=True)
class Setting:
    """A width of heads, a chip, an alignment and heads of K: between them they have other tiles, packs and kernels."""

    width: int
    chip: str = "hopper"
    step: int = 0
    kv_heads: int = HEADS
    splits: int = 1
    rows: int = KEYS

    @property
    def machine(self) -> Machine:
        return Machine(next(chip for chip in CHIPS if chip.name == self.chip), 132, 50 << 20)

    def tensor(self, heads: int, rows: int) -> torch.Tensor:
        """Zeros, whose rows begin off a 16-byte boundary with a step of 1."""
        return torch.zeros(BATCH, heads, rows, self.width + self.step, dtype=torch.float16)[..., : self.width]

    @cached_property
    def q(self) -> torch.Tensor:
        return self.tensor(HEADS, self.rows)

    @cached_property
    def k(self) -> torch.Tensor:
        return self.tensor(self.kv_heads, KEYS)

    @cached_property
    def one_hot(self) -> torch.Tensor:
        """Key j, or query j, has a one in column j."""
        made = self.tensor(self.kv_heads, KEYS)
        made[..., torch.arange(KEYS), torch.arange(KEYS)] = 1.0
        return made

    def problem(self, v: torch.Tensor, out: torch.Tensor, p: float, seed: torch.Tensor) -> Problem:
        shaping = Shaping(dropout=p, seed=seed)
        return problem_of(self.q, self.k, v, out, causal=False, alignment="top-left", shaping=shaping)


TILES = {
    "64 keys": Setting(128),
    "64 keys in 3 parts": Setting(128, splits=3),
    "32 keys": Setting(256),
    "16 keys": Setting(320),
    "packed heads": Setting(128, kv_heads=1, rows=5),
    "element by element": Setting(91, step=1),
    "Turing": Setting(128, chip="turing"),
    "Ada": Setting(128, chip="ada"),
}


def mask(setting: Setting, p: float, seed: tuple[int, int]) -> torch.Tensor:
    """[B, H, rows, keys] by the Python function."""
    dropout = Dropout(p, *seed)
    rows = torch.arange(setting.rows)
    heads = [dropout.kept(head, rows, torch.arange(KEYS)) for head in range(BATCH * HEADS)]
    return torch.stack(heads).unflatten(0, (BATCH, HEADS))


def posed(setting: Setting, p: float, seed: torch.Tensor) -> tuple[torch.Tensor, Problem]:
    out = torch.full_like(setting.q, math.nan)
    return out, setting.problem(setting.one_hot, out, p, seed)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Program]:
    made, seed = {}, torch.zeros(2, dtype=torch.int64)
    for arch in (750, 800):
        chosen = [one for one in TILES.values() if (one.chip == "turing") == (arch == 750)]
        kernels = [plan_general(posed(one, 0.5, seed)[1], one.machine).kernel for one in chosen]
        entries = list(dict.fromkeys([*kernels, Combine("float16")]))
        made[arch] = compile_program(entries, arch, tmp_path_factory.mktemp("dropout"), parameters="DroppingParams")
    return made


def kept_forward(
    setting: Setting, p: float, seed: tuple[int, int], programs: dict[int, Program], to: Path
) -> torch.Tensor:
    given = torch.tensor(seed)
    out, problem = posed(setting, p, given)
    buffers = HostBuffers()
    way = General(plan_general(problem, setting.machine, splits=setting.splits))
    steps = way.steps(problem, 1.0, buffers)  # type: ignore[arg-type]
    program = programs[750 if setting.chip == "turing" else 800]
    program.run(steps, [setting.q, setting.k, setting.one_hot, out, given, *buffers.memory], to)
    scale = Dropout(p, *seed).scale
    right = torch.tensor(scale / KEYS, dtype=torch.float16)
    weights = out[..., :KEYS]
    assert bool(((weights == 0) | ((weights - right).abs() <= right * 2e-3)).all()), "kept weights are scaled"
    return weights != 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TILES)
def test_every_tile_part_pack_and_chip_drops_the_weights_of_the_python_mask(
    name: str, seed: tuple[int, int], programs: dict[int, Program], tmp_path: Path
) -> None:
    setting = TILES[name]
    assert torch.equal(kept_forward(setting, 0.37, seed, programs, tmp_path), mask(setting, 0.37, seed))


def test_the_settings_have_other_tiles_parts_packs_and_kernels() -> None:
    seed = torch.zeros(2, dtype=torch.int64)
    launches = [plan_general(posed(one, 0.5, seed)[1], one.machine, splits=one.splits) for one in TILES.values()]
    assert len({launch.kernel.tile.keys for launch in launches}) == 3
    assert {launch.splits for launch in launches} > {1}
    assert {launch.pack for launch in launches} == {1, HEADS}
    assert {launch.kernel.vector for launch in launches} == {True, False}
    assert all(launch.kernel.drops for launch in launches)


@pytest.mark.parametrize("p", [2.0**-32, 1 - 2.0**-24])
def test_the_least_and_the_largest_share_are_dropped_like_any_other(
    p: float, programs: dict[int, Program], tmp_path: Path
) -> None:
    setting = TILES["64 keys"]
    kept = kept_forward(setting, p, (3, 4), programs, tmp_path)
    assert torch.equal(kept, mask(setting, p, (3, 4)))
    assert bool(kept.all() if p < 0.5 else not kept.any())


BACKWARD = [TILES["64 keys"], TILES["32 keys"], TILES["element by element"], replace(TILES["Turing"], chip="ampere")]


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> Program:
    seed, entries = torch.zeros(2, dtype=torch.int64), []
    for setting in BACKWARD:
        _, steps, _ = backward_steps(setting, seed, (0, 0))
        entries += [step.entry for step in steps]
    made = list(dict.fromkeys(entries))
    return compile_program(made, 800, tmp_path_factory.mktemp("dropout"), parameters="DroppingBackwardParams")


def backward_steps(setting: Setting, seed: torch.Tensor, of: tuple[int, int]) -> tuple:  # type: ignore[type-arg]
    """dout is one-hot by query and V has a one in its first column, so that dV shows one mask and dQ the other."""
    v = setting.tensor(HEADS, KEYS)
    v[..., 0] = 1.0
    dout, out, lse = (
        setting.one_hot.clone(),
        setting.tensor(HEADS, KEYS),
        torch.full((BATCH, HEADS, KEYS), math.log(KEYS)),
    )
    dout[..., 0] = 1.0
    setting.k[...] = setting.one_hot
    scale = Dropout(0.37, *of).scale
    out[..., 0] = mask(setting, 0.37, of).double().sum(-1).mul(scale / KEYS).half()
    gradients = [torch.full_like(x, math.nan) for x in (setting.q, setting.k, v)]
    places = Gradients(*(tensor_layout(x, "a gradient") for x in (dout, *gradients)))
    problem = BackwardProblem(setting.problem(v, out, 0.37, seed), places, 1.0, lse.data_ptr())
    buffers = HostBuffers()
    steps = PairBackward(setting.machine).steps(problem, buffers)  # type: ignore[arg-type]
    tensors = [setting.q, setting.k, v, out, lse, dout, seed, *gradients, *buffers.memory]
    return gradients, steps, tensors


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("setting", BACKWARD, ids=lambda one: f"{one.width}-{one.step}-{one.chip}")
def test_both_backward_passes_drop_the_weights_that_the_forward_pass_dropped(
    setting: Setting, seed: tuple[int, int], backward: Program, tmp_path: Path
) -> None:
    (dq, _, dv), steps, tensors = backward_steps(setting, torch.tensor(seed), seed)
    backward.run(steps, tensors, tmp_path)
    want = mask(setting, 0.37, seed)
    assert torch.equal(dv[..., 1:KEYS].mT != 0, want[..., 1:, :]), "by the pass over keys"
    assert torch.equal(dq[..., :KEYS] > 0, want), "by the pass over queries"
