"""Give every test of this folder a timeout that does not depend on the machine's speed."""

from tests.timeouts import timeout_when_still  # noqa: F401
