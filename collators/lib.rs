//! Collators: rows to batches.
