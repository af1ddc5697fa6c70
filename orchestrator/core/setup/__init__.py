"""Sets up a project for the first launch: steps as data, shown as text, shell script or Terraform, and taken by
REST."""
