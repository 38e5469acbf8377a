"""What training runs on: GPUs, the links between them, and clusters of both."""
