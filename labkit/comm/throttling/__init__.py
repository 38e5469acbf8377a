"""Messages that take the time that the links of a Topology need, on one machine, without root.

The bytes travel at once, by gloo. A `recv` returns when the last byte would have arrived, a `send`
when the last byte would have left (and the receiver has come, as always). In between, the rank
sleeps. On the way from rank a to rank b a message of m bytes passes two ports, the out port of a
and the in port of b, and reaches the second alpha seconds after the first:

    begins  = the later of: it is posted; the out port is free       port busy for m * beta
    left    = begins + m * beta
    arrived = the later of: begins + alpha; the in port is free      port busy for m * beta
              + m * beta

    alone, it takes alpha + m * beta

Under a FatTree there are more ports in between, each with a beta of its own: up to the first switch
above both hosts, and down. Bytes go on as they come, so that a message alone takes alpha + m times
the largest beta. A fast port is busy for m times its own beta, and others' bytes pass in between:

    starts  = the later of: the first byte comes; the port is free   port busy for m * its beta
    passed  = the later of: starts + m * its beta; the last byte came

- Messages of a rank leave one after the other, in the order in which they were posted.
- Ranks that send to the same one share its in port, first come, first served. A message that waits
  for it holds up nothing behind it: there is room on the way, as in a switch.
- Ranks of one host share the two ports of its slow link.
- A message begins when it is posted, whether or not its receiver has come. A receiver that comes
  late finds it there.

Throttled      send, recv, isend and irecv on every group of the run, and so labkit.collectives.
Not throttled  the backend's own collectives (all_reduce and so on) and those through shared memory:
           the run says so afterwards. Also barrier, split, and calls of torch.distributed outside
           labkit's Group API.

Where a link is faster than the machine, messages take the machine's time: see lateness.py.
The model: Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, with the
ports of LogGP (Alexandrov et al., SPAA 1995): bytes keep a port busy, latency does not.
"""
