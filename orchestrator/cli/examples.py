"""Examples of each command: shown in its help and in the manual page, and parsed by the tests."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "": (
        ("bench demo", "an example on this machine, in about a minute"),
        ("bench new norm", "write a kernel of your own: then bench launch norm.py"),
        ("bench plan --gpu l4", "what a run on a rented L4 would do, and cost at most"),
    ),
    "baseline": (("bench baseline set main last", "the last run is `main` on its device from now on"),),
    "baseline list": (("bench baseline list", "every name, device and run"),),
    "baseline rm": (("bench baseline rm main --device T4", "forget it on one device"),),
    "baseline set": (("bench baseline set main last", "the last run is `main` on its device from now on"),),
    "baseline show": (("bench baseline show main", "its run and the environment of that run"),),
    "budget": (("bench budget", "caps, what is spent, and what is left"),),
    "budget rebuild": (("bench budget rebuild", "make a lost ledger again from the events of the runs"),),
    "budget set": (("bench budget set --day 5 --month 20", "caps for everybody who uses the bucket"),),
    "cases": (("bench cases last", "the ids that `bench history --case` takes"),),
    "cloud": (("bench cloud status", "the machines of the embedded cloud"),),
    "cloud bill": (("bench cloud bill", "what each machine cost by the cloud's own meter"),),
    "cloud preempt": (("bench cloud preempt VM --notice 0", "preempt a machine without warning"),),
    "cloud start": (("bench cloud start", "start it before anything needs it"),),
    "cloud status": (("bench cloud status", "the machines that are alive"),),
    "cloud stop": (("bench cloud stop", "delete its machines and stop it"),),
    "cloud weather": (("bench cloud weather storm.yaml", "inject stock-outs, errors and preemptions from a file"),),
    "compare": (
        ("bench compare RUN last", "what became faster or slower since RUN"),
        ("bench compare last --against main", "the same against a baseline: exit 12 for a regression"),
    ),
    "config": (("bench config show l4", "the configuration that --gpu l4 takes, as YAML to begin with"),),
    "config keys": (("bench config keys", "every key that --set takes"),),
    "config list": (("bench config list", "the configurations that come with the tool"),),
    "config show": (("bench config show l4 > mine.yaml", "a file to change; then bench launch mine.yaml"),),
    "costs": (("bench costs --last 50", "the newest 50 entries of the ledger"),),
    "costs add": (("bench costs add 1.50 --category ai --note review", "it counts against the same caps"),),
    "costs rm": (("bench costs rm cost-1a2b3c4d", "take back a cost that was added by hand"),),
    "demo": (("bench demo", "softmax in one step and in four, and a version that is wrong"),),
    "diagnose": (("bench diagnose last", "why the run failed, and how to repair it"),),
    "docs": (("bench docs your-own-kernel", "what a workload consists of"),),
    "doctor": (
        ("bench doctor", "this machine, the project, the bucket"),
        ("bench doctor --gpu l4 --fix", "what a run on an L4 needs; after asking, fixes what is safe and free"),
    ),
    "fetch": (("bench fetch last", "the last run's results, into results/local/"),),
    "fleet": (
        ("bench fleet plan sweep.yaml", "children, machines, the most it can cost; nothing is spent"),
        ("bench fleet launch --gpu l4,t4 --set measure.cache=cold,warm --cap 20", "two settings on two GPUs"),
    ),
    "fleet check-batch": (("bench fleet check-batch", "once in each project, before --engine batch"),),
    "fleet costs": (("bench fleet costs last", "dollars by GPU, and what is held"),),
    "fleet fetch": (("bench fleet fetch last", "all rows in one file; --runs also downloads each child's run"),),
    "fleet launch": (
        ("bench fleet launch sweep.yaml --cap 80", "follow it; Ctrl-C detaches"),
        ("bench fleet launch --engine hosts --gpu cpu --host a --host b --cases-per-child 12", "on two workstations"),
    ),
    "fleet ls": (("bench fleet ls", "every fleet in the bucket"),),
    "fleet plan": (("bench fleet plan --gpu l4,h100 --repeats 3", "worst case, expected dollars, quota by region"),),
    "fleet report": (("bench fleet report last", "one table for each case, with GPUs as columns"),),
    "fleet resume": (("bench fleet resume last --cap 120", "measure what is missing, under another cap"),),
    "fleet retry": (("bench fleet retry last --failed", "try children again that were given up"),),
    "fleet sql": (
        ('bench fleet sql last "SELECT gpu, median(latency_us) FROM rows GROUP BY gpu"', "or of the table children"),
    ),
    "fleet status": (("bench fleet status last", "its state; also copies what its machines stored to the bucket"),),
    "fleet stop": (("bench fleet stop last", "end its machines; what is stored stays"),),
    "fleet watch": (("bench fleet watch last", "until it is over; Ctrl-C only stops watching"),),
    "history": (
        ("bench history --case CASE", "the speed-up of the kernel over the runs; `bench cases` lists the cases"),
    ),
    "image": (("bench image list", "each image: what it costs, what it saves, whether launches boot from it"),),
    "image build": (("bench image build --gpu l4", "on a small spot machine; the next launch boots from it"),),
    "image list": (("bench image list", "what each costs and saves"),),
    "image rm": (("bench image rm IMAGE", "delete it now; the money held for its storage is released"),),
    "image validate": (("bench image validate IMAGE", "whether a launch would boot from it, and why not"),),
    "init": (
        ("bench init --project my-project", "shows what it will do, asks, and does it"),
        ("bench init --embedded --yes", "practise without a project"),
    ),
    "launch": (
        ("bench launch --gpu cpu", "on this machine: nothing is rented"),
        ("bench launch norm.py --gpu l4", "a workload of your own on a rented L4"),
        ("bench launch --gpu l4 --set run.max_minutes=10 --max-price 0.30", "a shorter run, for at most $0.30 an hour"),
    ),
    "logs": (("bench logs last -f", "follow it until the run is over"),),
    "man": (("bench man | man -l -", "the manual page"),),
    "mcp": (
        ("bench mcp norm.py --gpu l4 --max-usd 2", "an agent may spend $2 on rented L4s"),
        ("bench mcp norm.py --host local", "it measures on this machine, because you name it"),
    ),
    "new": (("bench new norm", "norm.py; then bench launch norm.py"),),
    "plan": (("bench plan --gpu l4", "offers, prices and the most it can cost; nothing is requested"),),
    "prices": (("bench prices --gpu l4", "an L4 in every region that is known"),),
    "profile": (
        ("bench profile last", "what the run has profiled"),
        (
            "bench profile last --case CASE -i bench",
            "profile one implementation on one case, on a machine like that of the run",
        ),
    ),
    "reap": (
        ("bench reap", "list machines that no live run owns"),
        ("bench reap --yes", "and delete them"),
    ),
    "report": (
        ("bench report last", "the report of the last run"),
        ("bench report last --figures figures --format svg", "its figures as files"),
    ),
    "schema": (("bench schema status", "the JSON Schema of what bench status --json prints"),),
    "site": (
        ("bench site", "pages of every run in the bucket, in the folder site"),
        ("bench site --serve", "and show them, following live runs"),
    ),
    "ssh": (("bench ssh last --print", "the command that reaches the machine"),),
    "status": (
        ("bench status", "the newest runs, and the machines alive now"),
        ("bench status last --json", "one run, for a script"),
    ),
    "stop": (("bench stop last", "end the last run and delete its machine"),),
    "tune": (
        ("bench tune norm.py --host local --minutes 5", "on this machine, for five minutes"),
        ("bench tune norm.py --gpu l4 --max-usd 0.50 --apply", "on a rented L4; writes the winner into norm.py"),
    ),
    "watch": (
        ("bench watch norm.py --host local", "a verdict at each save, on this machine"),
        ("bench watch norm.py --gpu l4 --set budget.per_run_usd=2", "on a rented L4, for at most $2"),
    ),
}
"""By the words that call a command."""


def example_lines(command: str) -> list[str]:
    """The examples of a command, aligned, for its help."""
    examples = EXAMPLES.get(command, ())
    width = max((len(line) for line, _ in examples), default=0)
    if width > 40:  # an explanation beside it would not fit a usual terminal
        return [text for line, about in examples for text in (line, f"    {about}")]
    return [f"{line:<{width}}  {about}" for line, about in examples]
