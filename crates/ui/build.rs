//! Embeds the files of `dist`, each as it is and compressed, with a tag of its content. Compressing here costs the server
//! nothing at run time, and the repository holds each file once.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};

fn main() -> io::Result<()> {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let mut files = fs::read_dir(&dist)?.collect::<io::Result<Vec<_>>>()?;
    files.sort_by_key(fs::DirEntry::file_name);
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.file_name().to_string_lossy().into_owned();
        let content = fs::read(file.path())?;
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&content)?;
        let packed_at = out.join(format!("{name}.gz"));
        fs::write(&packed_at, packed.finish()?)?;
        let tag: String = Sha256::digest(&content).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(
            list,
            "File {{ name: {name:?}, tag: {:?}, plain: include_bytes!({:?}), gzip: include_bytes!({packed_at:?}) }},",
            format!("\"{tag}\""),
            file.path(),
        );
    }
    list.push(']');
    fs::write(out.join("files.rs"), list)
}
