//! Checkpoints: snapshot, background writer, manifest, Hugging Face layout, retention, strict loading.
