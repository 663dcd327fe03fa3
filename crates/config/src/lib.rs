//! Hydra-style composition: layered YAML/TOML, overrides, origins, diagnostics, registries.
