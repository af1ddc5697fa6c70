"""In which order workers take the files of tests, so that the processors are busy from the first minute to the last.

A file that waits for machines, hosts and clocks needs a worker and hardly a processor. Side by side such files leave
the processors idle; at the end they leave a worker alone. So two of five workers begin with one, and from then on every
fifth file is one until there is none left. What computes longest comes first, and what is named nowhere comes last, as
it was collected. `python -m pytest -p tests.support.spent` tells which files belong here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

WAITING: Final = (
    "tests/integration/cli/test_readers_that_leave.py",
    "tests/integration/hosts/test_runs.py",
    "tests/integration/cli/test_real_machines.py",
    "tests/integration/fleet/test_slurm.py",
    "tests/integration/fleet/test_batch_task.py",
    "tests/integration/hosts/test_fleets.py",
    "tests/integration/startup/test_keeper.py",
    "tests/integration/test_packaging.py",
    "tests/integration/library/test_library.py",
)
"""What is longest under way, and waits for half of that time or more."""

COMPUTING: Final = (
    "tests/kernels/cuda/test_compile_gates.py",
    "tests/search/chaos/test_campaign.py",
    "tests/integration/startup/test_bootstrap.py",
    "tests/integration/analysis/test_second_simulation.py",
    "tests/integration/stories/test_kept_machines.py",
    "tests/search/chaos/test_hosts.py",
    "tests/kernels/cuda/test_paged.py",
    "tests/integration/stories/test_half_built.py",
    "tests/integration/stories/test_half_begun.py",
    "tests/kernels/cuda/test_hopper_bias_simt.py",
    "tests/integration/stories/test_recovery.py",
    "tests/integration/stories/test_half_taken.py",
    "tests/kernels/cuda/test_direct.py",
    "tests/integration/analysis/test_between.py",
    "tests/integration/stories/test_runs.py",
    "tests/kernels/cuda/test_races_simt.py",
    "tests/integration/cli/test_start_up.py",
    "tests/integration/startup/test_requirements.py",
    "tests/integration/documents/test_commands.py",
    "tests/integration/report/test_published.py",
    "tests/kernels/cuda/test_backward_ampere_simt.py",
    "tests/integration/cli/test_bad_documents.py",
    "tests/integration/startup/test_agent_stops.py",
    "tests/integration/startup/test_agent_failing_steps.py",
    "tests/integration/report/test_browser.py",
    "tests/kernels/test_sanitized.py",
    "tests/kernels/cuda/test_backward_turing_simt.py",
    "tests/unit/site/test_site.py",
    "tests/unit/core/test_setup.py",
    "tests/integration/cli/test_doctor.py",
    "tests/kernels/cuda/test_inputs.py",
    "tests/kernels/cuda/test_backward90_ordered_simt.py",
)
"""What computes longest."""

AT_FIRST: Final = (2, 3)
"""How many that wait and how many that compute the workers begin with."""
BETWEEN: Final = 4
"""How many that compute come between two that wait."""


def interleaved(waiting: Sequence[str], computing: Sequence[str]) -> list[str]:
    """Both in their own order, those that wait among the others."""
    wait, compute = AT_FIRST
    order = [*waiting[:wait], *computing[:compute]]
    left = list(computing[compute:])
    for file in waiting[wait:]:
        order += [*left[:BETWEEN], file]
        del left[:BETWEEN]
    return order + left


RANK: Final = {file: place for place, file in enumerate(interleaved(WAITING, COMPUTING))}


def rank(test: str) -> int:
    """The place of a test, by its id: that of its file. Tests of one place keep the order they have."""
    return RANK.get(test.partition("::")[0], len(RANK))
