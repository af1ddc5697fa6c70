"""The pages of a bucket: all runs, each run, each case over time, devices beside each other, costs. Pure: text out."""
