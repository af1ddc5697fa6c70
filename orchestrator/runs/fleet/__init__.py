"""The use cases of a fleet: plan, launch, follow, resume, stop, fetch. The engines stand behind `ports.Scheduler`."""
