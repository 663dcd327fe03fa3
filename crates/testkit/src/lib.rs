//! Goldens, gradient checks, tiny configurations (dev-dependency only).
