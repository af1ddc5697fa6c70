"""Chooses one of the ways that can compute a problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.planning import Machine, Problem, plan_problem
from kernels.attention.cuda.plan.variants import padded_head_dim
from kernels.attention.cuda.run.launching import Way
from kernels.attention.cuda.ways import hopper, small, small_hopper
from kernels.attention.cuda.ways.costs import Costs, costs_for
from kernels.attention.cuda.ways.decode import FEW_ROWS, Decode, has_many_heads, is_narrow, plan_decode
from kernels.attention.cuda.ways.decode import why_not as why_not_decode
from kernels.attention.cuda.ways.float8 import float8_ways
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.attention.cuda.ways.heads_as_rows import HeadsAsRows, row_ways
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.portable import Portable
from kernels.attention.cuda.ways.tuned import FAR, Key, Table, table_for

LEAST_KEYS_TO_DECODE = 512
FEW_KEYS_OF_ONE_ROW = 64
"""For a mask that is the same for all rows: if queries, keys and the width of a head are all at most this, the portable
kernel was faster."""
SMALL_TILE, SMALL_TILE_WIDTH, SMALL_TILE_OF_ONE_ROW = 64, 128, 1.1
"""Keys of a tile, width of a head, and the factor for the estimate of such shapes with a mask that is the same for all
rows. Their price was measured without a mask, but with one the kernel waits for the biases of each tile."""
FEW_TILES_OF_TWO_WIDTHS = 3
"""With K and V of two widths, if at most one SM in this many gets a row tile, the portable kernel cuts the keys. Its
products take three times as long."""
FEW_TILES_WITH_A_MASK = 6
"""With a mask, if at most one SM in this many gets a row tile, the portable kernel was faster, because it cuts the
keys."""


def list_ways(problem: Problem, machine: Machine, *, dependent: bool = False) -> list[Way]:
    """Return every way that computes this problem. Raises `Unsupported` if there is none.

    With `dependent`, return only the ways that begin while the previous launch on the stream is ending; there may be
    none.
    """
    if problem.float8:
        return [] if dependent else float8_ways(problem, machine)
    if problem.is_shaped and dependent:
        return []
    if problem.is_shaped:
        general_way = General(plan_general(problem, machine))
        return [*hopper.hopper_ways(problem, machine), general_way, *hopper.bias_ways(problem, machine)]
    few_keys: list[Way] = []
    if problem.is_plain:
        few_keys += small.small_ways(problem, machine, dependent=dependent)
        few_keys += small_hopper.small_hopper_ways(problem, machine, dependent=dependent)
    if dependent:
        return few_keys
    ways: list[Way] = [*hopper.hopper_ways(problem, machine)]
    if problem.is_plain:
        ways.append(Portable(plan_problem(problem, machine)))
        ways.extend(few_keys)
        ways.extend(row_ways(problem, machine))
    general = plan_general(problem, machine)
    if not problem.is_plain or general.pack > 1:
        ways.append(General(general))
    if why_not_decode(problem) is None:
        ways.append(Decode(plan_decode(problem, machine)))
    return [*ways, *hopper.bias_ways(problem, machine)]


def choose_way(problem: Problem, machine: Machine) -> tuple[Way, str]:
    """Return the chosen way and the reason. A measurement or a price decides where there is one, else a rule. Raises
    `Unsupported` if no way computes the problem."""
    if problem.float8:
        return float8_ways(problem, machine)[0], "elements of eight bits, by whether there are few queries"
    if problem.invariant:
        return choose_invariant(problem, machine), "the same kernel and parts whatever the batch and its lengths"
    way_list = list_ways(problem, machine)
    if problem.is_shaped:
        return choose_shaped(problem, machine, way_list)
    chip = machine.chip.name, machine.sm_count
    return (
        by_shape(problem, machine, way_list, costs_for(*chip))
        or by_heads(problem, machine, way_list)
        or (
            padded_head_dim(problem.head_dim) == problem.head_dim
            and by_table(problem, way_list, table_for(*chip), at_most=0.0)
        )
        or by_costs(problem, machine, way_list, costs_for(*chip))
        or by_table(problem, way_list, table_for(*chip))
        or by_rule(problem, machine, way_list)
    )


def choose_shaped(problem: Problem, machine: Machine, found: Sequence[Way]) -> tuple[Way, str]:
    """Return the way for scores that are shaped, or K and V of two widths, and the reason. Of Hopper's kernels, which
    compute some widths, the one that cuts the keys is for few tiles. The general way packs the heads of a group where
    their queries are few, and cuts keys where Hopper's cannot."""
    offered = [way for way in found if isinstance(way, HopperWay)]
    general = next(way for way in found if isinstance(way, General))
    if not offered:
        return general, "only these kernels shape scores, drop weights, or have K and V of these widths"
    split = next((way for way in offered if way.kernel.split), None)
    few = problem.seq_q * problem.group <= FEW_ROWS
    if few and (split is None or problem.group > 1):
        return general, "few queries: the heads of a group are packed and the keys are cut"
    costs = costs_for(machine.chip.name, machine.sm_count)
    by_bias = by_shape(problem, machine, found, costs)
    if by_bias is not None:
        return by_bias
    if split is not None:
        return split, "few tiles of rows and many keys: the keys are cut into parts"
    if general.launch.splits > 1 and FEW_TILES_OF_TWO_WIDTHS * offered[0].tiles(problem) <= machine.sm_count:
        return general, "few tiles of rows and many keys: the keys are cut into parts"
    priced = by_costs(problem, machine, offered, costs)
    return priced or (offered[0], "Hopper's kernels have K and V of these widths")


def choose_invariant(problem: Problem, machine: Machine) -> Way:
    """Return the way in which the bits of a row depend on nothing but the row, its keys and the kernel. It is chosen by
    types, heads, widths, layouts and, where all sequences have as many, by the number of queries. Raises
    `Unsupported`."""
    few = problem.lengths is None and problem.seq_q * problem.group <= FEW_ROWS
    if problem.is_shaped:
        way = None if few else hopper.invariant_way(problem, machine)
        return way or General(plan_general(problem, machine))
    if few and why_not_decode(problem) is None:
        return Decode(plan_decode(problem, machine))
    apart = problem.seq_q * problem.q.row, problem.seq_q * problem.out.row
    gaps = problem.lengths is None and problem.batch > 1 and (problem.q.batch, problem.out.batch) != apart
    if problem.pages is not None and machine.hopper and gaps:
        raise Unsupported("a batch-invariant call over pages needs q and out without gaps: pass q.contiguous()")
    return hopper.invariant_way(problem, machine) or General(plan_general(problem, machine))


def by_shape(problem: Problem, machine: Machine, found: Sequence[Way], costs: Costs | None) -> tuple[Way, str] | None:
    """Return a way for a mask that is the same for all rows, and the reason.

    Among the ways that read such a mask once for all rows, it is the one whose shape has the least estimate without the
    mask; without prices, the one whose SMs get the fewest rows. Small problems get the general way. None if there
    are no such ways, or if they have few tiles and the portable kernel cuts the keys.
    """
    offered = [way for way in found if isinstance(way, HopperWay) and way.kernel.shape.biases]
    if not offered:
        return None
    width = offered[0].kernel.head_dim
    general = next(way for way in found if isinstance(way, General))
    if max(width, problem.seq_q, problem.seq_k) <= FEW_KEYS_OF_ONE_ROW:
        return general, "few queries and keys with a mask: smaller blocks, of which an SM holds several"

    def cost(way: HopperWay) -> tuple[float, int]:
        shape = replace(way.kernel.shape, biases=0)
        without = replace(way, kernel=replace(way.kernel, shape=shape, mask=None))
        us = None if costs is None else costs.us(without, replace(problem, mask=None), machine)
        small = width == SMALL_TILE_WIDTH and shape.keys == SMALL_TILE < problem.seq_k and not problem.causal
        tile_factor = SMALL_TILE_OF_ONE_ROW if small else 1.0
        return (us or math.inf) * tile_factor, -(-way.tiles(problem) // machine.sm_count) * shape.rows

    best = min(offered, key=cost)
    if found[0] is general and general.launch.splits > 1 and 2 * best.tiles(problem) < machine.sm_count:
        return None
    return best, "a mask that is the same for all rows is read once for each tile of keys"


def by_heads(problem: Problem, machine: Machine, found: Sequence[Way]) -> tuple[Way, str] | None:
    """Return the way for one query of more than `FEW_ROWS` heads on each head of K, and the reason; None for others and
    where nothing was measured."""
    wanted = Decode if has_many_heads(problem) and is_narrow(problem, machine.chip) else HeadsAsRows
    way = next((way for way in found if isinstance(way, wanted)), None)
    return None if way is None else (way, "one query of many heads on each head of K: fastest in such cells")


def by_costs(problem: Problem, machine: Machine, found: Sequence[Way], costs: Costs | None) -> tuple[Way, str] | None:
    """Return the way with the least estimate, and the reason. None without prices, and for lengths that only the device
    knows, for which there is no estimate."""
    unknown = problem.lengths is not None or problem.pages is not None
    made = None if costs is None or unknown else costs.cheapest(found, problem, machine)
    if made is None:
        return None
    return made[0], f"about {made[1]:.3g} us, the smallest of the estimates from tiles, keys and bytes"


def by_table(
    problem: Problem, found: Sequence[Way], table: Table | None, *, at_most: float = FAR
) -> tuple[Way, str] | None:
    """Return the way that was fastest at the nearest measured size, and the reason. None if no measured size is within
    `at_most` doublings, and for windows, masks and lengths, which were not measured."""
    if table is None or not problem.is_plain:
        return None
    picked = table.pick(key_of(problem), [way.name for way in found], at_most)
    return None if picked is None else (next(way for way in found if way.name == picked[0]), picked[1])


def key_of(problem: Problem) -> Key:
    """Return the key under which the table has a problem of this size."""
    return Key(
        problem.dtype,
        padded_head_dim(problem.head_dim),
        problem.causal,
        problem.group,
        problem.batch * problem.heads,
        problem.seq_q,
        problem.seq_k,
    )


def by_rule(problem: Problem, machine: Machine, found: Sequence[Way]) -> tuple[Way, str]:
    """Return the way for a problem of which nothing was measured, chosen by fixed rules, and the reason."""
    by_kind: dict[type, Way] = {type(way): way for way in found}
    if problem.mask is not None and isinstance(found[0], HopperWay):
        general, few_tiles = by_kind[General], FEW_TILES_WITH_A_MASK * found[0].tiles(problem) <= machine.sm_count
        if isinstance(general, General) and general.launch.splits > 1 and few_tiles:
            return general, "few tiles of rows and many keys with a mask: the keys are cut into parts"
    few = problem.seq_q * problem.group <= FEW_ROWS and problem.seq_k >= LEAST_KEYS_TO_DECODE
    if Decode in by_kind and few:
        return by_kind[Decode], "few queries over many keys: decoding reads K and V once for a whole group of heads"
    if problem.is_plain and General in by_kind:
        return by_kind[General], "the queries of one head do not fill a tile: the heads of a group are packed"
    one_pass = next((way for name in small.PREFERRED for way in found if way.name == name), None)
    if one_pass is not None and problem.batch * problem.heads * problem.seq_q <= small.FEW_ROWS:
        return one_pass, "few keys and few rows: one pass over all keys, with every load under way at once"
    return found[0], "the first way that computes this problem"
