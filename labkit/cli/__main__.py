"""`python -m labkit.cli`, where the command `labkit` is not on the path."""

from labkit.cli import main

try:
    main()
finally:
    # Where KeyboardInterrupt came in an exec() of text, as dataclasses make their methods, Python
    # would end a `-m` program by SIGINT, whatever its status. The next exec() makes it forget that.
    exec("")
