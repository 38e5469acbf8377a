"""What `labkit watch` is made of: keys, signals, a screen with a last line, and the session."""
