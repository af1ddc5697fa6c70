"""Documents on a bucket: the event log, the ledger, the index, stock-outs and baselines."""
