//! Two stores that were filled alike: one that commands open, and one behind a server that they ask.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::kit::place::{Here, Said};
use crate::kit::served::Served;

/// The same twice: a store that commands open, and one behind a server, asked from a folder that has none.
pub struct Twins {
    pub own: Here,
    pub away: Here,
    pub url: String,
    pub served: Served,
    _theirs: Here,
    /// Runs by name, here and there.
    pub runs: BTreeMap<String, [String; 2]>,
}

/// What a server adds to the reason of a step that waits for an instance that can run it: its own can't. A command that opens a
/// store has no instance, and nothing to add.
pub const NOT_HERE: &str = "; this instance doesn't run \"command\" steps";

/// Takes away what a server says of its own instance, and nothing else.
fn take_notes(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(notes) = members.remove("notRunHere") {
                assert!(
                    notes.as_array().is_some_and(|notes| notes.len() == 1 && notes[0]["need"] == "command")
                );
            }
            if let Some(Value::String(reason)) = members.get_mut("reason")
                && let Some(before) = reason.strip_suffix(NOT_HERE)
            {
                *reason = before.to_owned();
            }
            members.values_mut().for_each(take_notes);
        }
        Value::Array(items) => items.iter_mut().for_each(take_notes),
        _ => {}
    }
}

/// Where flags go: before the words of a command of one's own.
fn flags_end(words: &[&str]) -> usize {
    words.iter().position(|word| *word == "--").unwrap_or(words.len())
}

impl Twins {
    pub fn new() -> Twins {
        let (own, theirs, away) = (Here::new(), Here::new(), Here::new());
        let mut runs = BTreeMap::new();
        for (name, exit, more) in
            [("order", 0, &["--input", r#"{"total": 1}"#, "--label", "team=a"][..]), ("doomed", 1, &[])]
        {
            let file = format!("{name}.yaml");
            let ids = [&own, &theirs].map(|here| {
                let ran = here.json(exit, &[&["run", &file], more].concat());
                ran["runId"].as_str().unwrap().to_owned()
            });
            runs.insert(name.to_owned(), ids);
        }
        let served = Served::start(theirs.folder.path(), &[]);
        let url = format!("http://{}", served.address);
        Twins { own, away, url, served, _theirs: theirs, runs }
    }

    /// Runs a command on both sides; a word in braces stands for a run.
    pub fn say(&self, words: &[&str]) -> [Said; 2] {
        let words_of = |side: usize| -> Vec<String> {
            let run =
                |word: &str| Some(self.runs.get(word.strip_prefix('{')?.strip_suffix('}')?)?[side].clone());
            words.iter().map(|word| run(word).unwrap_or_else(|| (*word).to_owned())).collect()
        };
        let (mine, mut theirs) = (words_of(0), words_of(1));
        let end = flags_end(words);
        theirs.splice(end..end, ["--server".to_owned(), self.url.clone()]);
        let run = |here: &Here, words: &[String]| {
            here.flowline(&words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        [run(&self.own, &mine), run(&self.away, &theirs)]
    }

    /// Both sides say the same, in JSON: what the second said.
    #[track_caller]
    pub fn same(&self, exit: i32, words: &[&str]) -> Value {
        let (flags, command) = words.split_at(flags_end(words));
        let said = self.say(&[flags, &["--json"], command].concat());
        let read = |said: &Said| -> Value {
            let lines = said.out.lines().map(|line| serde_json::from_str(line).expect("JSON"));
            lines.collect::<Vec<Value>>().into()
        };
        let [mut mine, mut theirs] = [read(&said[0]), read(&said[1])];
        let answer = theirs[0].clone();
        take_notes(&mut theirs);
        self.blank(&mut mine);
        self.blank(&mut theirs);
        assert_eq!(mine, theirs, "{words:?}");
        assert_eq!([said[0].exit, said[1].exit], [exit, exit], "{words:?}: {said:?}");
        answer
    }

    /// Both sides say the same to people.
    #[track_caller]
    pub fn alike(&self, exit: i32, words: &[&str]) {
        let mut said = self.say(words);
        said[1].out = said[1].out.replace(NOT_HERE, "");
        assert_eq!(self.words(&said[0].out), self.words(&said[1].out), "{words:?}");
        assert_eq!([said[0].exit, said[1].exit], [exit, exit], "{words:?}: {said:?}");
        assert!(exit != 0 || !said[1].out.is_empty(), "{words:?} said nothing: {said:?}");
        if exit != 0 {
            assert_eq!(self.words(&said[0].err), self.words(&said[1].err), "{words:?}");
        }
    }

    /// Starts a run on both sides and names it.
    #[track_caller]
    pub fn start(&mut self, name: &str, words: &[&str]) -> Value {
        self.again(name, &[&["start"], words].concat())
    }

    /// Writes a file on both sides.
    pub fn write(&self, name: &str, text: &str) {
        [&self.own, &self.away].iter().for_each(|here| here.write(name, text));
    }

    /// Does what makes a run on both sides, and names that.
    #[track_caller]
    pub fn again(&mut self, name: &str, words: &[&str]) -> Value {
        let answers = self.say(&[words, &["--json"]].concat()).map(|said| {
            assert_eq!(said.exit, 0, "{words:?}: {said:?}");
            serde_json::from_str::<Value>(&said.out).unwrap()
        });
        let ids = [0, 1].map(|side| answers[side]["runId"].as_str().unwrap().to_owned());
        self.runs.insert(name.to_owned(), ids);
        let [mut mine, mut theirs] = answers;
        self.blank(&mut mine);
        self.blank(&mut theirs);
        assert_eq!(mine, theirs, "{words:?}");
        theirs
    }

    /// Names stand for ids, and nothing for what differs from run to run.
    fn blank(&self, value: &mut Value) {
        const DIFFER: [&str; 28] = [
            "id",
            "ts",
            "at",
            "due",
            "next",
            "token",
            "start",
            "startAt",
            "oldest",
            "duration",
            "durationMs",
            "createdAt",
            "startedAt",
            "completedAt",
            "expiresAt",
            "origin",
            "worker",
            "instance",
            "p50",
            "p95",
            "p99",
            "eventId",
            "receivedAt",
            "fence",
            "since",
            "until",
            "remainingMs",
            "lockToken",
        ];
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    let differs = DIFFER.contains(&name.as_str()) && !value.is_null() && !value.is_object();
                    match value {
                        _ if differs || name == "origin" => *value = json!("…"),
                        Value::String(text) if name == "reason" || name == "summary" => {
                            *text = self.words(text).join(" ")
                        }
                        value => self.blank(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.blank(item)),
            Value::String(text) => *text = self.named(text),
            _ => {}
        }
    }

    fn named(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, ids) in &self.runs {
            ids.iter().for_each(|id| text = text.replace(id.as_str(), &format!("<{name}>")));
        }
        // What has no name here: the ids of new runs and of tokens, of events with a key, and of instances.
        let hex =
            |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let instance = |word: &str| {
            let mut parts = word.rsplitn(3, '-');
            parts.next().is_some_and(|rest| hex(rest, 6))
                && parts.next().is_some_and(|process| process.parse::<u32>().is_ok())
                && parts.next().is_some_and(|host| !host.is_empty())
        };
        let id = |word: &str| {
            word.len() == 36 && word.matches('-').count() == 4
                || word.strip_prefix('k').is_some_and(|rest| hex(rest, 32))
                || instance(word)
        };
        text.split_inclusive(' ').map(|word| if id(word.trim()) { "<id> " } else { word }).collect()
    }

    /// The words of a text, without figures of time.
    fn words(&self, text: &str) -> Vec<String> {
        let blank = |word: &str| word.replace(|c: char| c.is_ascii_digit(), "#");
        let text = text.lines().map(|line| self.named(line)).collect::<Vec<_>>().join("\n");
        let mut words: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            let unit = word.trim_start_matches(|c: char| c.is_ascii_digit());
            let is_unit = ["ms", "s", "m", "min", "h", "d"].contains(&unit);
            let figure = |word: &String| word.starts_with(|c: char| c.is_ascii_digit());
            match words.last_mut() {
                Some(before) if is_unit && unit == word && figure(before) => *before = "time".to_owned(),
                _ if is_unit && unit != word => words.push("time".to_owned()),
                _ if word.contains(':') || word.starts_with("20") && word.contains('-') => {
                    words.push(blank(word))
                }
                _ => words.push(word.to_owned()),
            }
        }
        words.dedup_by(|a, b| a == "time" && b == "time");
        words
    }
}
