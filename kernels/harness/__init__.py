"""The programme that runs on the VM: it records the environment, builds, checks and measures, fact by fact."""
