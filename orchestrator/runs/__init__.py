"""The use cases of a run: launch, follow, resume, reconcile, reap."""
