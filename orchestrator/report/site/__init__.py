"""The pages of a bucket: all runs, each run, each case over time, a comparison of devices, and costs. Pure: text
out."""
