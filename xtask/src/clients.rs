//! `cargo xtask clients`: the API's description under a linter's recommended rules, and clients that others' tools generate
//! from it, compiled and used against a server.
//!
//! Tools go below the target folder in fixed versions, and stay there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::probe;
use crate::stage::TOOLS;

const DOCUMENT: &str = "docs/openapi.json";
const PROGRAMS: &str = "xtask/clients";
const NPM: &[&str] = &["@redocly/cli@2.77.0", "openapi-typescript@7.13.0", "typescript@5.9.3"];
const PIP: &[&str] = &["openapi-python-client==0.29.1"];
const TSC: &[&str] =
    &["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom", "client.mts"];

pub(crate) fn run(root: &Path) -> Result<()> {
    let clients = Clients {
        root,
        node: install_npm(root)?,
        python: install_pip(root)?,
        work: root.join("target/clients"),
    };
    let _ = std::fs::remove_dir_all(&clients.work);
    std::fs::create_dir_all(&clients.work).context("cannot make target/clients")?;
    clients.lint()?;
    clients.generate()?;
    clients.play()
}

struct Clients<'a> {
    root: &'a Path,
    /// Folders with the programs of the tools.
    node: PathBuf,
    python: PathBuf,
    /// What is generated, and the server's store.
    work: PathBuf,
}

impl Clients<'_> {
    /// Warnings count as errors.
    fn lint(&self) -> Result<()> {
        let mut lint = self.tool(&self.node, "redocly", &["lint", "--extends=recommended", "--format=json"]);
        let output =
            lint.arg(self.root.join(DOCUMENT)).stderr(Stdio::inherit()).output().context("redocly")?;
        let said = String::from_utf8_lossy(&output.stdout);
        let clean = said.replace(char::is_whitespace, "").contains(r#""totals":{"errors":0,"warnings":0,"#);
        ensure!(output.status.success() && clean, "redocly finds fault with {DOCUMENT}: {said}");
        Ok(())
    }

    fn generate(&self) -> Result<()> {
        let document = self.root.join(DOCUMENT);
        for program in ["client.mts", "client.py"] {
            std::fs::copy(self.root.join(PROGRAMS).join(program), self.work.join(program))
                .context(program)?;
        }
        let types = ["--output", "api.d.ts"];
        done(self.tool(&self.node, "openapi-typescript", &types).arg(&document), "openapi-typescript")?;
        done(&mut self.tool(&self.node, "tsc", TSC), "the TypeScript client does not compile")?;
        // Bodies in YAML and TOML are left out by this tool, which says so.
        let package = ["generate", "--meta", "none", "--output-path", "flowline_api", "--path"];
        let mut generate = self.tool(&self.python, "openapi-python-client", &package);
        let output = generate.arg(&document).output().context("openapi-python-client")?;
        let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text)).concat();
        ensure!(output.status.success(), "openapi-python-client: {said}");
        let compile = ["-m", "compileall", "-q", "flowline_api", "client.py"];
        done(&mut self.tool(&self.python, "python", &compile), "the Python client does not compile")
    }

    /// Both clients against one server that asks for tokens.
    fn play(&self) -> Result<()> {
        let token = probe::built(self.root)?
            .current_dir(&self.work)
            .args(["token", "create", "--subject", "clients", "--scope", "admin"])
            .stderr(Stdio::inherit())
            .output()
            .context("flowline token")?;
        let token = String::from_utf8_lossy(&token.stdout).trim().to_owned();
        let (_server, url) = probe::serve(self.root, &self.work, &["--auth", "tokens"])?;
        let arguments = |program| [program, url.as_str(), token.as_str()];
        done(
            &mut self.tool(&self.node, "node", &arguments("client.mjs")),
            "the TypeScript client does not work",
        )?;
        done(
            &mut self.tool(&self.python, "python", &arguments("client.py")),
            "the Python client does not work",
        )
    }

    /// A tool, working on what is generated. It sends nothing to its makers.
    fn tool(&self, folder: &Path, program: &str, arguments: &[&str]) -> Command {
        let mut command =
            Command::new(if program == "node" { PathBuf::from(program) } else { folder.join(program) });
        command.current_dir(&self.work).args(arguments).stdin(Stdio::null());
        // Tools look for their own: node for npm's programs, ruff for Python's.
        let known = std::env::var_os("PATH").unwrap_or_default();
        let path: Vec<OsString> = [folder.into(), known].into();
        command.env("PATH", path.join(std::ffi::OsStr::new(":")));
        command.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
        command
    }
}

/// npm's packages, and where their programs are.
fn install_npm(root: &Path) -> Result<PathBuf> {
    let folder = root.join(TOOLS).join("npm");
    installed(&folder, NPM, |folder| {
        let prefix = ["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"];
        done(Command::new("npm").args(prefix).arg(folder).args(NPM), "npm could not install them")
    })?;
    Ok(folder.join("node_modules/.bin"))
}

/// Python's packages, and where their programs are.
fn install_pip(root: &Path) -> Result<PathBuf> {
    let folder = root.join(TOOLS).join("python");
    let programs = folder.join("bin");
    installed(&folder, PIP, |folder| {
        done(Command::new("python3").args(["-m", "venv"]).arg(folder), "python3 with venv is needed")?;
        done(
            Command::new(programs.join("pip")).args(["install", "--quiet"]).args(PIP),
            "pip could not install them",
        )
    })?;
    Ok(programs)
}

/// Installs packages into an empty folder, unless these very ones are there.
fn installed(folder: &Path, packages: &[&str], install: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let (mark, names) = (folder.join("installed"), packages.join(" "));
    if std::fs::read_to_string(&mark).is_ok_and(|there| there == names) {
        return Ok(());
    }
    eprintln!("==> clients: installing {names}");
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    install(folder)?;
    std::fs::write(&mark, names).context("cannot note what is installed")
}

fn done(command: &mut Command, or: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{or}: {:?} could not be started", command.get_program()))?;
    ensure!(status.success(), "{or}: {status}");
    Ok(())
}
