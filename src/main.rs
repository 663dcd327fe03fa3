use std::process::ExitCode;

fn main() -> ExitCode {
    tpu_train::App::new().run(std::env::args_os().skip(1))
}
