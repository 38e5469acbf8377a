import tests.forked_kernels  # noqa: F401
