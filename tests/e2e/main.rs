//! The built binary, from outside: a command line in, an exit code and a run folder out.
//!
//! One test program rather than one a file: linking is what integration tests cost.

mod bad_input;
mod bad_steps;
mod bench;
mod command_line;
mod completion;
mod configs;
mod data;
mod diff;
mod doctor;
mod earlier_version;
mod embed;
mod eval;
mod faults;
mod fine_tuning;
mod gates;
mod generate;
mod gguf;
mod harness;
mod hub;
mod hub_push;
#[path = "../../crates/hub/tests/hub/server.rs"]
mod hub_server;
mod hydra;
mod inspect;
mod instruction_sets;
mod learning;
mod length;
mod lora;
mod migration;
mod nothing_to_predict;
mod optimizers;
mod plan;
mod plugins;
mod preference;
mod profile;
mod pulse;
mod python;
mod ranks;
mod remat;
mod report;
mod resume;
mod signals;
mod supervision;
mod surface;
mod sweep;
mod tensorboard;
mod tpu;
mod wandb;
