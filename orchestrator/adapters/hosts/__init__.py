"""Machines of the user's own behind the Cloud port."""
