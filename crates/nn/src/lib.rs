//! Parameters by path, the Forward context, layers, initialisation.
