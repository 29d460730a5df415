//! Where in a definition something is: `steps.ship.subscribes[1]`.
//!
//! A place is a path through the definition, not a position in a text, so that a flow built in Rust has one too. For a
//! file the reader turns it into a range of the text.

use std::fmt;

/// A path from the root of a definition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Segment {
    Key(String),
    /// The key itself, not what stands under it.
    Name(String),
    Index(usize),
}

impl Place {
    pub fn root() -> Place {
        Place::default()
    }

    /// The place of a step.
    pub fn step(name: &str) -> Place {
        Place::root().key("steps").key(name)
    }

    /// The place of a machine's state.
    pub fn state(name: &str) -> Place {
        Place::root().key("states").key(name)
    }

    pub fn key(&self, key: &str) -> Place {
        self.then(Segment::Key(key.to_owned()))
    }

    /// The key itself, if that is what's wrong.
    pub fn name(&self, key: &str) -> Place {
        self.then(Segment::Name(key.to_owned()))
    }

    pub fn index(&self, index: usize) -> Place {
        self.then(Segment::Index(index))
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.0
    }

    fn then(&self, segment: Segment) -> Place {
        let mut segments = self.0.clone();
        segments.push(segment);
        Place(segments)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Key(key) | Segment::Name(key) if is_bare(key) => {
                    write!(f, "{}{key}", if i > 0 { "." } else { "" })?
                }
                // A name may hold dots; quotes keep the path readable in one way only.
                Segment::Key(key) | Segment::Name(key) => {
                    write!(f, "{}{key:?}", if i > 0 { "." } else { "" })?
                }
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

fn is_bare(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_dots_is_quoted() {
        let place = Place::step("order.ship").key("subscribes").index(1).key("any").index(0);
        assert_eq!(place.to_string(), r#"steps."order.ship".subscribes[1].any[0]"#);
    }
}
