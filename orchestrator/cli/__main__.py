"""`python -m orchestrator.cli`: the same as `bench`."""

from orchestrator.cli.app import main

main()
