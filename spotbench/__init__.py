"""Measure GPU kernels from Python, as `bench` does from the command line.

    from spotbench import launch, plan

    print(plan("rmsnorm.py", gpu="l4").ceiling_usd)
    results = launch("rmsnorm.py", gpu="l4", max_usd=0.50).wait()
    print(results.headlines)

What is exported here is stable within a major version; everything below `orchestrator` is not. docs/library.md has an
optimisation loop and a notebook.
"""

from orchestrator import __version__
from orchestrator.core.errors import (
    BenchError,
    BudgetExceeded,
    ConfigError,
    NoCapacity,
    NotFound,
    RunFailed,
    RunPreempted,
    RunStopped,
)
from spotbench.money import Dollars
from spotbench.results import Results, Timing, Verdict, results_in
from spotbench.runs import Plan, Run, find, launch, plan, results
from spotbench.sessions import Session, Version, session

__all__ = [
    "BenchError",
    "BudgetExceeded",
    "ConfigError",
    "Dollars",
    "NoCapacity",
    "NotFound",
    "Plan",
    "Results",
    "Run",
    "RunFailed",
    "RunPreempted",
    "RunStopped",
    "Session",
    "Timing",
    "Verdict",
    "Version",
    "__version__",
    "find",
    "launch",
    "plan",
    "results",
    "results_in",
    "session",
]
