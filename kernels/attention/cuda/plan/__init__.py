"""What has to be computed: a call's tensors, the problem that they pose, the table of kernels. It needs no device."""
