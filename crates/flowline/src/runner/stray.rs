//! Processes that a program has started and that left its process group (`setsid`), found on Linux in `/proc`.
//!
//! Two traces lead to them: they descend from the program while it lives, and they have its environment, which names it
//! uniquely ([`MARK`]). One that does away with both (orphaned, with an environment of its own) isn't found; only a
//! container or a cgroup holds that one.

/// The variable that names the program in the environment of all that it starts.
pub const MARK: &str = "FLOWLINE_PROCESS";

#[cfg(target_os = "linux")]
pub use linux::hunt;

/// A program with all that descends from it. By descriptors: a number could be another process's by now. Elsewhere than
/// on Linux only the process group is known.
#[derive(Debug, Default)]
pub struct ProcessTree(#[cfg(target_os = "linux")] Vec<std::os::fd::OwnedFd>);

#[cfg(target_os = "linux")]
mod linux {
    use std::fs;
    use std::os::fd::OwnedFd;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::{MARK, ProcessTree};

    /// How often all processes are looked through: those that were found may have started others meanwhile.
    const ROUNDS: usize = 5;
    /// Processes that are followed; a program that started more is stopped by other means.
    const FOLLOWED: usize = 10_000;

    impl ProcessTree {
        /// Looks at a process that is alive, and at its children's children.
        pub fn of(pid: u32) -> ProcessTree {
            let (mut found, mut next) = (Vec::new(), vec![pid]);
            while let Some(pid) = next.pop() {
                if found.len() >= FOLLOWED {
                    break;
                }
                found.extend(opened(pid));
                let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
                for thread in threads {
                    let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
                    next.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
                }
            }
            ProcessTree(found)
        }

        pub fn kill(&self) {
            self.0.iter().for_each(kill);
        }
    }

    /// Kills every process whose environment has this mark. Reads `/proc` to its end, so it blocks for some milliseconds.
    pub fn hunt(mark: &str) {
        let entry = format!("{MARK}={mark}");
        for _ in 0..ROUNDS {
            let mut found = false;
            for pid in fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Some(pid) = pid.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok()) else {
                    continue;
                };
                // Opened before it is looked at, so that it's the one that is killed.
                let Some(process) = opened(pid) else { continue };
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                if environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes()) {
                    kill(&process);
                    found = true;
                }
            }
            if !found {
                return;
            }
        }
    }

    fn opened(pid: u32) -> Option<OwnedFd> {
        pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
    }

    fn kill(process: &OwnedFd) {
        // It may have ended by itself.
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

#[cfg(not(target_os = "linux"))]
impl ProcessTree {
    pub fn of(_: u32) -> ProcessTree {
        ProcessTree()
    }

    pub fn kill(&self) {}
}

#[cfg(not(target_os = "linux"))]
pub fn hunt(_: &str) {}
