//! Files and folders that only their owner may read: 0600 and 0700, whatever the umask.
//!
//! SQLite gives `FILE-wal`, `FILE-shm` and `FILE-journal` the mode of the file itself, so making that one privately is
//! enough. What's already there keeps its mode: an operator may have opened it to a group on purpose.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Makes a new, empty file that only its owner may read. Fails if something has this name already, be it a link to
/// nowhere.
pub(crate) fn new_file(path: &Path) -> io::Result<File> {
    let file = owned(OpenOptions::new().read(true).write(true).create_new(true)).open(path)?;
    close_to_others(&file)?;
    Ok(file)
}

/// Opens a file to read and write, and makes it if it's missing. Never follows a symbolic link in its last component:
/// such a file could belong to anyone.
pub(crate) fn open_or_make(path: &Path) -> io::Result<File> {
    loop {
        match new_file(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => return other,
        }
        match unfollowed(OpenOptions::new().read(true).write(true)).open(path) {
            // Removed in between.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
}

/// Makes a folder and those above it that are missing, all of them for their owner only.
pub fn make_folder(path: &Path) -> io::Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_folder(above)?;
    }
    match new_folder(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

#[cfg(unix)]
fn new_folder(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    fs::DirBuilder::new().mode(0o700).create(path)?;
    // A umask may have taken from the owner, too.
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

#[cfg(unix)]
fn owned(options: &mut OpenOptions) -> &mut OpenOptions {
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600)
}

#[cfg(unix)]
fn close_to_others(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o600))
}

#[cfg(unix)]
fn unfollowed(options: &mut OpenOptions) -> &mut OpenOptions {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    // Nor wait for the other end of a pipe that has this name.
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
}

#[cfg(not(unix))]
fn new_folder(path: &Path) -> io::Result<()> {
    fs::create_dir(path)
}

#[cfg(not(unix))]
fn owned(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(not(unix))]
fn close_to_others(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn unfollowed(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}
