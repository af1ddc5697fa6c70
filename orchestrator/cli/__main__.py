"""`python -m orchestrator.cli`: the same as `bench`."""

from orchestrator.cli.entry import main

main()
