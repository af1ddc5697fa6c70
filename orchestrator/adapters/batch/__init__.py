"""Fleets on Google Cloud Batch: the scheduler, the bodies it sends, and the check that Batch bounds dollars."""
