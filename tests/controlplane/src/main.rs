//! Runs a command beside a real Kubernetes API server.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use clap::{Args, Parser};
use controlplane::{ControlPlane, Version};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

/// Real Kubernetes API servers for tests.
#[derive(Parser)]
enum Cli {
    /// Run a command beside an API server, which ends with it.
    ///
    /// The command finds KUBECONFIG (the administrator's), SCPOL_TEST_URL, SCPOL_TEST_KUBECONFIG_OPERATOR,
    /// SCPOL_TEST_KUBECONFIG_CREATOR, SCPOL_TEST_KUBECONFIG_BYSTANDER, SCPOL_TEST_DIR (server logs; removed at the end), and a
    /// fitting kubectl first in PATH.
    Run(Run),
}

#[derive(Args)]
struct Run {
    /// Version of Kubernetes, such as 1.36
    #[arg(long)]
    version: Version,
    /// Record the requests in $SCPOL_TEST_DIR/audit.log
    #[arg(long)]
    audit: bool,
    /// Admission plugins beyond the server's default ones
    #[arg(long, value_name = "X,Y", value_delimiter = ',')]
    admission: Vec<String>,
    /// 1.13: serve initializer configurations, but initialize nothing
    #[arg(long)]
    no_initializers_plugin: bool,
    /// 1.13: do not serve initializer configurations
    #[arg(long)]
    no_initializers_api: bool,
    /// Also run the controllers, the scheduler and this many fake nodes (the newest version)
    #[arg(long, value_name = "N", default_value_t = 0)]
    nodes: usize,
    /// An argument of kube-apiserver, as --name=value
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    extra_arg: Vec<String>,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Run {
    async fn start(&self) -> Result<ControlPlane> {
        let plugins: Vec<&str> = self.admission.iter().map(String::as_str).collect();
        let mut builder = ControlPlane::builder(self.version).enable_admission(&plugins).nodes(self.nodes);
        if self.audit {
            builder = builder.audit_log();
        }
        if self.no_initializers_plugin {
            builder = builder.disable_initializers_plugin();
        }
        if self.no_initializers_api {
            builder = builder.disable_initializers_api();
        }
        self.extra_arg.iter().fold(builder, |b, arg| b.extra_arg(arg)).start().await
    }

    fn spawn(&self, plane: &ControlPlane) -> Result<Child> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).envs(plane.environment()?);
        command.spawn().with_context(|| format!("running {}", self.command[0].display()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let Cli::Run(run) = Cli::parse();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let plane = tokio::select! {
        started = run.start() => started?,
        _ = interrupt.recv() => return Ok(ExitCode::from(130)),
        _ = terminate.recv() => return Ok(ExitCode::from(143)),
    };
    let mut child = run.spawn(&plane)?;
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).context("the command has no pid")?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            // A terminal also sends Ctrl-C to the command.
            _ = interrupt.recv() => if !std::io::stdin().is_terminal() { forward(pid, Signal::INT) },
            _ = terminate.recv() => forward(pid, Signal::TERM),
        }
    };
    plane.stop().await;
    Ok(code(status))
}

fn forward(pid: Pid, signal: Signal) {
    // The pid is still valid, because our child has not been waited for. The process may have ended already.
    let _ = kill_process(pid, signal);
}

/// The exit code in the form of a shell.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
