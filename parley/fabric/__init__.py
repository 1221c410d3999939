"""The members of one generation, and bytes between them, whatever carries the bytes."""
