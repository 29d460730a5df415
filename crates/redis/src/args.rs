//! Arguments of a script, packed one behind the other: two allocations however many there are.

use std::io::Write;

/// A list of byte strings.
#[derive(Debug, Default, Clone)]
pub(crate) struct ScriptArgs {
    data: Vec<u8>,
    ends: Vec<usize>,
}

impl ScriptArgs {
    pub(crate) fn new() -> ScriptArgs {
        ScriptArgs { data: Vec::with_capacity(1_024), ends: Vec::with_capacity(24) }
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut ScriptArgs {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn name(&mut self, name: &str) -> &mut ScriptArgs {
        self.part_name(name).end()
    }

    pub(crate) fn number(&mut self, number: impl std::fmt::Display) -> &mut ScriptArgs {
        self.part(format_args!("{number}")).end()
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut ScriptArgs {
        self.part_bytes(bytes).end()
    }

    /// Part of an argument that [`ScriptArgs::end`] completes.
    pub(crate) fn part(&mut self, part: std::fmt::Arguments<'_>) -> &mut ScriptArgs {
        // Writing to memory cannot fail.
        let _ = self.data.write_fmt(part);
        self
    }

    pub(crate) fn part_name(&mut self, name: &str) -> &mut ScriptArgs {
        crate::names::encode_into(&mut self.data, name);
        self
    }

    pub(crate) fn part_bytes(&mut self, bytes: &[u8]) -> &mut ScriptArgs {
        self.data.extend_from_slice(bytes);
        self
    }

    pub(crate) fn end(&mut self) -> &mut ScriptArgs {
        self.ends.push(self.data.len());
        self
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Their size, for the limit of a call.
    pub(crate) fn size(&self) -> usize {
        self.data.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.data[start..*end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_come_out_as_they_went_in() {
        let mut args = ScriptArgs::new();
        args.text("a").text("").bytes(&[0, 255]).number(-7).name("x y").bytes(&[]);
        args.part(format_args!("{} ", 1)).part_name("x y").part_bytes(&[7]).end();
        let out: Vec<&[u8]> = args.iter().collect();
        assert_eq!(out, [b"a".as_slice(), b"", &[0, 255], b"-7", b"x%20y", b"", b"1 x%20y\x07"]);
        assert_eq!(args.size(), 18);
    }
}
