"""`torchrun ... -m labkit.launch.payload FILE`: one rank of several hosts: see hosted_job.py."""

from labkit.hosts.hosted_job import main_of_a_process

if __name__ == "__main__":
    main_of_a_process()
