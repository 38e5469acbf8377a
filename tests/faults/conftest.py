"""What tests of this folder share: a timeout that waits for ranks, and not for seconds."""

from tests.timeouts import timeout_when_still  # noqa: F401
