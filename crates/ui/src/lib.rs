//! The web console, built from `ui/` into `dist/` and embedded here, so that building the binary needs no Node.
//!
//! `cargo xtask console` builds `dist/` again; CI fails if that changes anything. This crate knows nothing of HTTP: the
//! server sends the files.

/// A file of the console.
#[derive(Debug)]
pub struct File {
    pub name: &'static str,
    /// A tag of the content, quoted as `ETag` wants it.
    pub tag: &'static str,
    pub plain: &'static [u8],
    pub gzip: &'static [u8],
}

static FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The file under a path below `/ui/`. A path that names no file is a page of the console, which its script shows: it gets
/// the start page. A name with a dot that isn't there is no page.
pub fn file(path: &str) -> Option<&'static File> {
    let named = |name: &str| FILES.iter().find(|file| file.name == name);
    let looks_like_a_file =
        !path.contains('/') && path.rsplit_once('.').is_some_and(|(_, end)| end.len() <= 5);
    named(path).or_else(|| if looks_like_a_file { None } else { named("index.html") })
}

impl File {
    /// Its media type.
    pub fn kind(&self) -> &'static str {
        match self.name.rsplit_once('.').map(|(_, end)| end) {
            Some("html") => "text/html; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_the_start_page_and_files_themselves() {
        let start = file("index.html").expect("the console is built");
        for page in ["", "runs", "runs/01a1ee2f-a7bc-7645-9fae-a4e1e73bf007", "flows/my.flow", "queues/a.b/c"]
        {
            assert_eq!(file(page).map(|file| file.name), Some(start.name), "{page}");
        }
        assert_eq!(file("index.js").map(File::kind), Some("text/javascript; charset=utf-8"));
        assert!(file("nothing.js").is_none());
    }

    /// What people wait for on a slow line: the first page, and all of it.
    #[test]
    fn it_stays_small() {
        const FIRST: usize = 70 << 10;
        const WHOLE: usize = 150 << 10;
        let first = ["index.html", "index.js", "index.css", "Time.js", "Time.css", "icon.svg"];
        let size = |files: &mut dyn Iterator<Item = &File>| files.map(|file| file.gzip.len()).sum::<usize>();
        let first = size(&mut FILES.iter().filter(|file| first.contains(&file.name)));
        let whole = size(&mut FILES.iter());
        assert!(first <= FIRST && whole <= WHOLE, "first load {first} bytes, everything {whole}");
    }
}
