//! The command `scpol`, also `kubectl scpol`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sidecar_policy::cli::main()
}
