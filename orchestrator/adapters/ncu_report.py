"""Reports of Nsight Compute (`.ncu-rep`, packed or not) by NVIDIA's `ncu-report`, where that package is installed.

The package parses a binary format in native code, and a report may come from a machine that is not trusted: it runs in
a process of its own, with a limit, and what it prints is data. It comes out as the two CSV pages that `ncu` prints.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from orchestrator.core.errors import ConfigError, LocalError

PACKAGE: Final = "ncu_report"
LIMIT_S: Final = 60.0
MOST_BYTES: Final = 256 << 20
MOST_KERNELS: Final = 8
KINDS: Final = {"MsgType_OPTIMIZATION": "OPT", "MsgType_WARNING": "WRN", "MsgType_ERR": "ERR", "MsgType_OK": "INF"}


def pages_of(report: Path, package: str = PACKAGE) -> tuple[str, str]:
    """The raw page and the rules of a report, as `ncu --page raw --csv` and `--page details --csv` print them. Raises
    `ConfigError` without the package, `LocalError` for what it cannot read."""
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"{report.name} is read by NVIDIA's package ncu-report, which is not installed",
            hint="pip install ncu-report; or open the report in Nsight Compute",
        )
    with tempfile.TemporaryDirectory(prefix="bench-ncu-") as folder:
        plain = unpack_report(report, Path(folder))
        command = [sys.executable, "-m", "orchestrator.adapters.ncu_report", str(plain)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            page_document = json.loads(ran.stdout)
            return str(page_document["metrics"]), str(page_document["rules"])
        except subprocess.TimeoutExpired as exc:
            raise LocalError(f"cannot read {report}: it took more than {LIMIT_S:g} s") from exc
        except (ValueError, KeyError, TypeError) as exc:
            why = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
            raise LocalError(
                f"cannot read {report}: {why[0][:300]}", hint="check that it is a complete report of Nsight Compute"
            ) from exc


def unpack_report(report: Path, folder: Path) -> Path:
    """The report as `ncu-report` takes it: a plain file whose name ends in .ncu-rep. Raises `LocalError`."""
    try:
        if report.suffix != ".gz":
            return report.resolve(strict=True)
        with gzip.open(report) as packed:
            data = packed.read(MOST_BYTES + 1)
    except (OSError, EOFError) as exc:
        raise LocalError(f"cannot read {report}: {exc}") from exc
    if len(data) > MOST_BYTES:
        raise LocalError(f"cannot read {report}: it is larger than {MOST_BYTES >> 20} MiB")
    plain = folder / "report.ncu-rep"
    plain.write_bytes(data)
    return plain


def main(path: str) -> int:
    """In the process of its own: prints both pages as JSON."""
    reader: Any = importlib.import_module(PACKAGE)
    context = reader.load_report(path)
    kernels = [
        part.action_by_idx(number)
        for part in (context.range_by_idx(at) for at in range(context.num_ranges()))
        for number in range(part.num_actions())
    ][:MOST_KERNELS]
    sys.stdout.write(json.dumps({"metrics": format_metrics(kernels), "rules": format_rules(kernels, reader)}))
    return 0


def format_metrics(kernels: list[Any]) -> str:
    """A header, a line of units, and a line for each kernel."""
    names = dict.fromkeys(name for one in kernels for name in one.metric_names())
    units = {name: next((m.unit() for k in kernels if (m := k.metric_by_name(name)) is not None), "") for name in names}
    lines = [["ID", "Kernel Name", *names], ["", "", *(units[name] or "" for name in names)]]
    for number, one in enumerate(kernels):
        metric_values = (one.metric_by_name(name) for name in names)
        lines.append([str(number), str(one.name()), *(format_metric(each) for each in metric_values)])
    return write_csv(lines)


def format_metric(metric: Any) -> str:
    """One value; empty where this kernel does not have it."""
    value = metric.value() if metric is not None and metric.has_value() else None
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def format_rules(kernels: list[Any], reader: Any) -> str:
    """A line for each rule that said something."""
    kinds = {getattr(reader, name): word for name, word in KINDS.items() if hasattr(reader, name)}
    lines = [["ID", "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup"]]
    for number, one in enumerate(kernels):
        for rule in one.rule_results_as_dicts():
            message, gain = rule.get("rule_message") or {}, rule.get("speedup_estimation") or {}
            if message.get("message"):
                kind = kinds.get(message.get("type"), "INF")
                speedup = gain.get("speedup")
                lines.append(
                    [
                        str(number), str(rule.get("name", "")), kind, str(message["message"]),
                        "" if speedup is None else str(speedup),
                    ]
                )  # fmt: skip
    return write_csv(lines)


def write_csv(lines: list[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
