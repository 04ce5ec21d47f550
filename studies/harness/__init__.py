"""What all studies share: records of finished parts."""
