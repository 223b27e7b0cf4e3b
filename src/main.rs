//! The `treefork` command.

fn main() -> std::process::ExitCode {
    treefork::cli::main()
}
