"""Notes between hosts, packed, so that half of one is not taken for a whole one."""

import zlib


def packed(whole: bytes) -> bytes:
    """As it travels; a checksum is in it."""
    return zlib.compress(whole, 1)


def unpacked(note: bytes, most_bytes: int) -> bytes:
    """What was packed, `most_bytes` at most. ValueError, with the reason, for anything else."""
    unpacking = zlib.decompressobj()
    try:
        # The end of the note comes behind the last byte: with room for one more it is reached.
        whole = unpacking.decompress(note, most_bytes + 1)
    except (zlib.error, OverflowError) as error:
        raise ValueError(f"it is no note of labkit's: {error}") from None
    if not unpacking.eof:
        raise ValueError("it is no note of labkit's: it is cut short, or too long")
    return whole
