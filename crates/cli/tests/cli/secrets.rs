//! What programs of command steps can't learn about the process that starts them.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::kit::place::Here;

/// Any user but root, who may read everything.
const NOBODY: u32 = 65_534;

#[cfg(target_os = "linux")]
#[test]
fn a_program_cannot_read_the_environment_of_what_started_it() {
    let here = Here::new();
    here.write(
        "spy.yaml",
        "flow: spy\nsteps:\n  a: { command: [sh, -c, 'tr \"\\\\0\" \"\\\\n\" </proc/$PPID/environ; cat /proc/$PPID/maps'] }\n",
    );
    let binary = here.path("flowline");
    std::fs::copy(env!("CARGO_BIN_EXE_flowline"), &binary).unwrap();
    std::fs::set_permissions(here.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root =
        std::fs::metadata("/proc/self").map(|me| std::os::unix::fs::MetadataExt::uid(&me)).unwrap() == 0;
    let mut command = match root {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string(), "--clear-groups"]);
            command.arg(&binary);
            command
        }
        false => Command::new(&binary),
    };
    command.args(["run", "spy.yaml", "--store", "memory:"]).current_dir(here.folder.path());
    let output =
        command.env("FLOWLINE_TOKEN", "a-token-for-the-spy").output().expect("setpriv or the binary starts");
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("Permission denied"), "{said}");
    assert!(!said.contains("a-token-for-the-spy"), "{said}");
}
