//! `build.sh` takes programs that stand on the machine instead of building them. Nothing is built here: `go` is a stand-in.

#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The commands of a bare machine that `build.sh` calls.
const TOOLS: [&str; 14] = [
    "cat",
    "chmod",
    "dirname",
    "flock",
    "head",
    "ln",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sha256sum",
    "stat",
    "tail",
    "uname",
];

/// A machine: a home, a cache, and the programs of its `PATH`, with a stand-in for Go.
struct Machine(TempDir);

impl Machine {
    fn new() -> Self {
        let machine = Self(TempDir::new().unwrap());
        fs::create_dir(machine.path("bin")).unwrap();
        for name in TOOLS {
            let folder = ["/usr/bin", "/bin"].iter().find(|folder| Path::new(folder).join(name).exists()).unwrap();
            symlink(Path::new(folder).join(name), machine.path("bin").join(name)).unwrap();
        }
        machine.program("bin/go", "#!/bin/sh\necho go version go1.26.0 linux/amd64\n");
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The servers of a version where setup-envtest keeps them.
    fn envtest(&self, version: &str) -> PathBuf {
        let cpu = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        self.servers(&format!("data/kubebuilder-envtest/k8s/{version}-linux-{cpu}"), version)
    }

    /// Servers of a version in a folder.
    fn servers(&self, folder: &str, version: &str) -> PathBuf {
        for name in ["etcd", "kube-apiserver", "kubectl"] {
            self.program(&format!("{folder}/{name}"), &format!("#!/bin/sh\necho Kubernetes v{version}\n"));
        }
        self.path(folder)
    }

    /// What `build.sh` prints.
    fn build(&self, args: &[&str], variables: &[(&str, &str)]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build.sh");
        let mut command = Command::new("/bin/bash");
        command.arg(script).args(args).env_clear().env("PATH", self.path("bin")).env("HOME", self.0.path());
        command.env("XDG_DATA_HOME", self.path("data")).env("SCPOL_CACHE", self.path("cache"));
        command.envs(variables.iter().copied()).output().unwrap()
    }

    /// The seconds that a build would take.
    fn seconds(&self, version: &str, variables: &[(&str, &str)]) -> u32 {
        let output = self.build(&["--seconds", version], variables);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }
}

/// As `make demo` calls it.
const DEMO: &[(&str, &str)] = &[("SCPOL_TOOLS", "no")];

#[test]
fn servers_of_setup_envtest_are_not_built() {
    let machine = Machine::new();
    machine.program("bin/kubectl", "#!/bin/sh\n");
    let from_source = machine.seconds("1.30", DEMO);
    machine.envtest("1.30.1"); // another patch
    assert_eq!(machine.seconds("1.30", DEMO), from_source);
    let folder = machine.envtest("1.30.14");
    assert_eq!(machine.seconds("1.30", DEMO), 0);
    let output = machine.build(&["1.30"], DEMO);
    assert!(output.status.success(), "{output:?}");
    let made = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    assert_eq!(fs::read_link(made.join("etcd")).unwrap(), folder.join("etcd"));
    assert_eq!(fs::read_link(made.join("kube-apiserver")).unwrap(), folder.join("kube-apiserver"));
}

#[test]
fn what_kubebuilder_assets_lack_is_built_if_there_is_go() {
    let machine = Machine::new();
    machine.program("bin/kubectl", "#!/bin/sh\n");
    let folder = machine.servers("given", "1.37.0");
    let given = [("SCPOL_TOOLS", "no"), ("KUBEBUILDER_ASSETS", folder.to_str().unwrap())];
    let from_source = machine.seconds("1.37", DEMO);
    let rest = machine.seconds("1.37", &given);
    assert!(0 < rest && rest < from_source, "{rest} of {from_source}");
    fs::remove_file(machine.path("bin/go")).unwrap();
    assert_eq!(machine.seconds("1.37", &given), 0);
    let output = machine.build(&["1.37"], &given);
    assert_eq!(Path::new(String::from_utf8(output.stdout).unwrap().trim()), folder);
    fs::remove_file(folder.join("etcd")).unwrap();
    let output = machine.build(&["1.37"], &given);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && why.contains("KUBEBUILDER_ASSETS=") && why.contains("etcd"), "{why}");
}

#[test]
fn a_demo_takes_the_kubectl_of_the_machine_and_tests_do_not() {
    let machine = Machine::new();
    machine.envtest("1.30.14");
    let without = machine.seconds("1.30", DEMO);
    machine.program("bin/kubectl", "#!/bin/sh\n");
    assert!(without > 0);
    assert_eq!(machine.seconds("1.30", DEMO), 0);
    assert!(machine.seconds("1.30", &[]) > without);
}

#[test]
fn kubebuilder_assets_of_another_version_are_not_used() {
    let machine = Machine::new();
    machine.program("bin/kubectl", "#!/bin/sh\n");
    let from_source = machine.seconds("1.37", DEMO);
    let folder = machine.servers("older", "1.34.1");
    let given = [("SCPOL_TOOLS", "no"), ("KUBEBUILDER_ASSETS", folder.to_str().unwrap())];
    assert_eq!(machine.seconds("1.37", &given), from_source);
    let output = machine.build(&["--seconds", "1.37"], &given);
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("is not used: its kube-apiserver is not 1.37"), "{why}");
}

#[test]
fn a_demo_takes_the_servers_of_path_and_tests_do_not() {
    let machine = Machine::new();
    let from_source = [machine.seconds("1.37", DEMO), machine.seconds("1.37", &[])];
    machine.servers("bin", "1.36.3");
    let kubectl = from_source[0] - machine.seconds("1.37", DEMO);
    machine.servers("bin", "1.37.1");
    let rest = machine.seconds("1.37", DEMO);
    assert!(0 < rest && rest < from_source[0] - kubectl, "{rest} of {from_source:?}");
    assert_eq!(machine.seconds("1.37", &[]), from_source[1]);
    // With the controllers, too, nothing is left but the simulated nodes.
    for name in ["kube-controller-manager", "kube-scheduler"] {
        machine.program(&format!("bin/{name}"), "#!/bin/sh\n");
    }
    assert!(machine.seconds("1.37", DEMO) < rest);
    fs::remove_file(machine.path("bin/go")).unwrap();
    let output = machine.build(&["1.37"], DEMO);
    assert_eq!(Path::new(String::from_utf8(output.stdout).unwrap().trim()), machine.path("bin"));
}
