//! The client against a Hub on loopback that does all that servers and lines do, and against Python's cache.
//!
//! One test program rather than one a file: linking is what integration tests cost.

mod download;
mod server;
mod upload;
