"""What is to be computed: a call's tensors, the problem that they pose, the table of kernels. No device is asked."""
