"""`torchrun ... -m labkit.launch.payload FILE`: one rank on several hosts (cluster/job.py)."""

from labkit.launch.cluster.job import main_of_a_process

if __name__ == "__main__":
    main_of_a_process()
