//! A page as its code blocks, each with the directives that stand above it.

/// A fenced code block.
#[derive(Debug, PartialEq)]
pub struct Block {
    /// The line of the page that it opens at.
    pub line: usize,
    pub language: String,
    pub text: String,
    pub directives: Vec<Directive>,
}

/// `KEY: VALUE` in a `<!-- test … -->` comment.
#[derive(Debug, PartialEq)]
pub struct Directive {
    pub line: usize,
    pub key: String,
    pub value: String,
}

impl Block {
    pub fn directive(&self, key: &str) -> Option<&str> {
        self.directives
            .iter()
            .find(|directive| directive.key == key)
            .map(|directive| directive.value.as_str())
    }

    /// Whether it defines a flow or a machine.
    pub fn is_definition(&self) -> bool {
        let begins = match self.language.as_str() {
            "yaml" => ["flow:", "machine:"],
            "toml" => ["flow =", "machine ="],
            "json" => ["{ \"flow\"", "{ \"machine\""],
            _ => return false,
        };
        begins.iter().any(|begins| self.text.starts_with(begins))
    }
}

/// The blocks of a page in order, or what is wrong with it, as `line: what`.
pub fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut directives = Vec::new();
    let mut lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let mut blank_before = true;
    while let Some((at, line)) = lines.next() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if let Some(language) = content.strip_prefix("```") {
            let mut text = String::new();
            loop {
                let (_, line) = lines.next().ok_or(format!("{at}: the block has no end"))?;
                if line.trim() == "```" {
                    break;
                }
                text.push_str(
                    line.get(indent.min(line.len() - line.trim_start().len())..).unwrap_or_default(),
                );
                text.push('\n');
            }
            let language = language.trim().to_owned();
            blocks.push(Block { line: at, language, text, directives: std::mem::take(&mut directives) });
        } else if let Some(rest) = content.strip_prefix("<!-- test") {
            let mut comment = vec![(at, rest)];
            while !comment.last().is_some_and(|(_, line)| line.contains("-->")) {
                comment.push(lines.next().ok_or(format!("{at}: the comment has no end"))?);
            }
            directives.extend(read(&comment, indent)?);
        } else if indent >= 4 && blank_before && !content.is_empty() {
            return Err(format!("{at}: an indented code block; fence it, with its language"));
        }
        blank_before = content.is_empty();
    }
    match directives.first() {
        Some(directive) => Err(format!("{}: no block follows", directive.line)),
        None => Ok(blocks),
    }
}

/// Lines that are indented further than the comment go on with the value above them.
fn read(comment: &[(usize, &str)], indent: usize) -> Result<Vec<Directive>, String> {
    let mut directives: Vec<Directive> = Vec::new();
    for (place, (line, text)) in comment.iter().enumerate() {
        let text = text.trim_end().trim_end_matches("-->").trim_end();
        let text = if place == 0 { text.trim_start() } else { text.get(indent..).unwrap_or_default() };
        match (directives.last_mut(), text) {
            (_, "") => {}
            (Some(last), more) if more.starts_with(' ') => {
                last.value.extend(["\n", more.strip_prefix("  ").unwrap_or(more)]);
            }
            (_, text) => {
                let split =
                    if text.starts_with("let ") { text.split_once(' ') } else { text.split_once(':') };
                let (key, value) = split.ok_or(format!("{line}: not `KEY: VALUE`: {text}"))?;
                let [key, value] = [key, value].map(|part| part.trim().to_owned());
                directives.push(Directive { line: *line, key, value });
            }
        }
    }
    Ok(directives)
}

#[test]
fn a_page_is_read_into_blocks_with_the_directives_above_them() {
    let page = "text\n\n<!-- test skip: needs a cluster -->\n```console\nkubectl get pods\n```\n\n- item\n\n  <!-- test\n  input: 1\n  after: a\n    b\n  -->\n  ```yaml\n  flow: x\n    y\n  ```\n";
    let directive =
        |line, key: &str, value: &str| Directive { line, key: key.to_owned(), value: value.to_owned() };
    let skip = vec![directive(3, "skip", "needs a cluster")];
    let first = Block {
        line: 4,
        language: "console".to_owned(),
        text: "kubectl get pods\n".to_owned(),
        directives: skip,
    };
    let blocks = blocks(page).unwrap();
    assert_eq!(blocks[0], first);
    assert_eq!((blocks[1].line, blocks[1].text.as_str()), (15, "flow: x\n  y\n"));
    assert_eq!(blocks[1].directives[1].value, "a\nb");
}

#[test]
fn a_code_block_without_a_fence_is_refused() {
    assert_eq!(
        blocks("text\n\n    flowline run\n").unwrap_err(),
        "3: an indented code block; fence it, with its language"
    );
}
