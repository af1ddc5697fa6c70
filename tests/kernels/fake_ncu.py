"""A stand-in for Nsight Compute's command: it runs what it is to profile, and prints the pages that ncu prints.

The figures are of our own making; header, units, order and quoting are those of ncu 2025.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

METRICS = {
    "gpu__time_duration.sum": ("ns", "1490000"),
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": ("%", "54.80"),
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": ("%", "5.60"),
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": ("%", "31.2"),
    "dram__bytes_read.sum": ("byte", "268,435,456"),
    "dram__bytes_write.sum": ("byte", "134217728"),
    "launch__registers_per_thread": ("register/thread", "255"),
    "launch__shared_mem_per_block_static": ("byte/block", "1024"),
    "launch__shared_mem_per_block_dynamic": ("byte/block", "66,560"),
    "launch__occupancy_limit_blocks": ("block", "32"),
    "launch__occupancy_limit_registers": ("block", "2"),
    "launch__occupancy_limit_shared_mem": ("block", "3"),
    "launch__occupancy_limit_warps": ("block", "16"),
    "sm__maximum_warps_per_active_cycle_pct": ("%", "12.5"),
    "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "12.3"),
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("inst", "2.0"),
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio": ("inst", "1.0"),
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("inst", "0.8"),
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio": ("inst", "0.2"),
    "smsp__average_warps_issue_stalled_selected_per_issue_active.ratio": ("inst", "1.0"),
}
KERNEL = "void pytorch_flash::flash_fwd_kernel<128, 64>(Flash_fwd_params)"
LEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
        "Device", "CC"]  # fmt: skip
RULES = ["ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
         "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]  # fmt: skip


def quoted(cells: list[str]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def raw() -> str:
    """`--page raw --csv --print-units base`: a header, a line of units, a line a kernel."""
    lead = ["0", "4711", "python3.12", "127.0.0.1", KERNEL, "1", "7", "(128, 1, 1)", "(64, 16, 2)", "0", "9.0"]
    units, values = zip(*METRICS.values(), strict=True)
    lines = [quoted([*LEAD, *METRICS]), quoted([""] * len(LEAD) + list(units)), quoted(lead + list(values))]
    return "==PROF== Connected to process 4711\n" + "\n".join(lines) + "\n"


def rules() -> str:
    """`--page details --csv`: a line for each metric, and one for each rule."""
    metric = ["0", KERNEL, "Occupancy", "Achieved Occupancy", "%", "12.3", "", "", "", "", ""]
    small = [
        "0", KERNEL, "Occupancy", "", "", "", "Theoretical Occupancy", "OPT", "Registers limit it.", "local", "20.5",
    ]  # fmt: skip
    large = ["0", KERNEL, "WarpStateStats", "", "", "", "CPIStall", "OPT", "Warps wait for loads.", "global", "41.7"]
    note = ["0", KERNEL, "SpeedOfLight", "", "", "", "SOLBottleneck", "INF", "Only a remark.", "", ""]
    return "\n".join(quoted(row) for row in (RULES, metric, small, large, note)) + "\n"


def main(arguments: list[str]) -> int:
    """As `ncu`: `--export` runs the program that follows the options, `--import` prints a page."""
    if "--import" in arguments:
        page = arguments[arguments.index("--page") + 1]
        csv = "--csv" in arguments
        sys.stdout.write(
            raw() if page == "raw" else rules() if csv else f"  {KERNEL}\n    Section: GPU Speed Of Light\n"
        )
        return 0
    report = Path(arguments[arguments.index("--export") + 1])
    program = arguments[arguments.index(sys.executable) :]
    Path(f"{report}.asked").write_text(json.dumps(arguments))
    ran = subprocess.run([*program, "--out", f"{report}.dry"], capture_output=True, text=True, check=False)
    sys.stdout.write(f"==PROF== Connected to process\n{ran.stdout}{ran.stderr}")
    if ran.returncode == 0:
        report.write_bytes(b"NVR\x00" + b"report " * 200)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
