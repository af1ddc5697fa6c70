"""The use cases of every kind of paid work: plan, launch, follow, resume, reconcile, reap."""
