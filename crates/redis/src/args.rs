//! Arguments of a script, packed one behind the other: two allocations however many there are.

use std::fmt::Write;

/// A list of byte strings.
#[derive(Debug, Default, Clone)]
pub(crate) struct Args {
    data: String,
    raw: Vec<(usize, Vec<u8>)>,
    ends: Vec<usize>,
}

impl Args {
    pub(crate) fn new() -> Args {
        Args { data: String::with_capacity(512), raw: Vec::new(), ends: Vec::with_capacity(48) }
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Args {
        self.data.push_str(text);
        self.end()
    }

    pub(crate) fn name(&mut self, name: &str) -> &mut Args {
        crate::names::encode_into(&mut self.data, name);
        self.end()
    }

    pub(crate) fn number(&mut self, number: impl std::fmt::Display) -> &mut Args {
        // Writing to a string cannot fail.
        let _ = write!(self.data, "{number}");
        self.end()
    }

    /// Bytes that may not be text.
    pub(crate) fn bytes(&mut self, bytes: Vec<u8>) -> &mut Args {
        self.raw.push((self.ends.len(), bytes));
        self.end()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Their size, for the limit of a call.
    pub(crate) fn size(&self) -> usize {
        self.data.len() + self.raw.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut raw = self.raw.iter().peekable();
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).enumerate().map(move |(i, (start, end))| {
            match raw.next_if(|(at, _)| *at == i) {
                Some((_, bytes)) => &bytes[..],
                None => &self.data.as_bytes()[start..*end],
            }
        })
    }

    fn end(&mut self) -> &mut Args {
        self.ends.push(self.data.len());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_out_as_they_went_in() {
        let mut args = Args::new();
        args.text("a").text("").bytes(vec![0, 255]).number(-7).name("x y").bytes(vec![]);
        let out: Vec<&[u8]> = args.iter().collect();
        assert_eq!(out, [b"a".as_slice(), b"", &[0, 255], b"-7", b"x%20y", b""]);
        assert_eq!((args.count(), args.size()), (6, 10));
    }
}
