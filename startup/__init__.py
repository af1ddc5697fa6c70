"""What runs on a benchmark VM before and around the harness: the bootstrap (startup.sh) and the agent."""
