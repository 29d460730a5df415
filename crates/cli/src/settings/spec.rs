//! What is known of a setting, and what follows from it: its flag, its variable, its row in the docs.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::table::SPECS;

/// Which commands have a setting's flag. The others take it from the environment or the settings file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingGroup {
    Global,
    /// Commands that run steps.
    Work,
    /// Those of them that keep running.
    Unattended,
    Serve,
}

#[derive(Debug)]
pub struct Spec {
    /// Of its flag among the arguments of a command.
    pub id: &'static str,
    /// In the settings file and in `flowline config`.
    pub name: &'static str,
    /// If it isn't the name.
    pub flag: Option<&'static str>,
    /// What stands for the value in help.
    pub value: &'static str,
    pub group: SettingGroup,
    pub default: &'static str,
    /// What the default amounts to, if its text doesn't say that.
    pub usually: Option<&'static str>,
    /// What help says of the variable besides its name.
    pub also: Option<&'static str>,
    pub help: &'static str,
    /// The part of the docs that has more, for the table there.
    #[cfg(test)]
    pub see: Option<&'static str>,
}

impl Spec {
    pub fn variable(&self) -> String {
        format!("FLOWLINE_{}", self.name.to_uppercase().replace('-', "_"))
    }

    fn flag(&self) -> &'static str {
        self.flag.unwrap_or(self.name)
    }

    fn usual(&self) -> &'static str {
        self.usually.unwrap_or(self.default)
    }

    fn arg(&self) -> Arg {
        let (variable, also, usual) = (self.variable(), self.also.unwrap_or_default(), self.usual());
        let mut help = format!("{} [env: {variable}{also}]", self.help.trim());
        if !usual.is_empty() {
            help.push_str(&format!(" [default: {usual}]"));
        }
        let several = if self.flag.is_some() { ArgAction::Append } else { ArgAction::Set };
        let arg = Arg::new(self.id).long(self.flag()).value_name(self.value).action(several).help(help);
        match self.group {
            SettingGroup::Global => arg.global(true).help_heading("Global options"),
            _ => arg,
        }
    }

    /// What its flag says, if the command has it and it was given.
    pub fn given(&self, matches: &ArgMatches) -> Option<String> {
        let mut innermost = Some(matches);
        let mut given = None;
        while let Some(matches) = innermost {
            if let Ok(Some(values)) = matches.try_get_many::<String>(self.id) {
                given = Some(values.map(String::as_str).collect::<Vec<_>>().join(","));
            }
            innermost = matches.subcommand().map(|(_, matches)| matches);
        }
        given
    }
}

/// The flags of a group of settings, for a command to flatten. What they say is read by [`Spec::given`].
#[derive(Debug, Clone, Copy, Default)]
pub struct SettingFlags<const GROUP: u8>;

pub type GlobalSettings = SettingFlags<{ SettingGroup::Global as u8 }>;
pub type WorkSettings = SettingFlags<{ SettingGroup::Work as u8 }>;
pub type UnattendedSettings = SettingFlags<{ SettingGroup::Unattended as u8 }>;
pub type ServeSettings = SettingFlags<{ SettingGroup::Serve as u8 }>;

impl<const GROUP: u8> clap::Args for SettingFlags<GROUP> {
    fn augment_args(command: Command) -> Command {
        command.args(SPECS.iter().filter(|spec| spec.group as u8 == GROUP).map(Spec::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const GROUP: u8> clap::FromArgMatches for SettingFlags<GROUP> {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(SettingFlags)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

/// A field's name as settings are spelled.
pub const fn kebab<const LENGTH: usize>(field: &str) -> [u8; LENGTH] {
    let mut name = [0; LENGTH];
    let mut at = 0;
    while at < LENGTH {
        let letter = field.as_bytes()[at];
        name[at] = if letter == b'_' { b'-' } else { letter };
        at += 1;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    const HEAD: &str =
        "| flag | environment | key | default | commands | meaning |\n|---|---|---|---|---|---|\n";

    fn row(spec: &Spec) -> String {
        let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}` ") };
        let default = spec.usually.map_or_else(|| code(spec.default), |usually| format!("{usually} "));
        let commands = match spec.group {
            SettingGroup::Global => "all",
            SettingGroup::Work => "`run`, `work`, `serve`, `dev`",
            SettingGroup::Unattended => "`work`, `serve`, `dev`",
            SettingGroup::Serve => "`serve`, `dev`",
        };
        let help = spec.help.split_whitespace().collect::<Vec<_>>().join(" ");
        let more = spec.see.map_or_else(String::new, |see| format!(" ([more]({see}))"));
        format!(
            "| `--{} {}` | `{}`{} | `{}` | {default}| {commands} | {help}{more} |\n",
            spec.flag(),
            spec.value,
            spec.variable(),
            spec.also.unwrap_or_default(),
            spec.name
        )
    }

    #[test]
    fn the_docs_list_every_setting() {
        let page = std::fs::read_to_string(PAGE).expect("the page is there");
        let table = format!("{HEAD}{}", SPECS.iter().map(row).collect::<String>());
        if page.contains(&table) {
            return;
        }
        assert!(
            std::env::var_os("FLOWLINE_WRITE").is_some(),
            "the settings in docs/cli.md are out of date; regenerate them with FLOWLINE_WRITE=1 cargo test -p flowline-cli the_docs_list"
        );
        let from = page.find("| flag | environment |").expect("a table of settings");
        let until = from + page[from..].find("\n\n").expect("something after it") + 1;
        std::fs::write(PAGE, format!("{}{table}{}", &page[..from], &page[until..]))
            .expect("the page is written");
    }

    #[test]
    fn a_setting_is_spelled_with_hyphens() {
        assert_eq!(&kebab::<10>("keep_runs_"), b"keep-runs-");
        let spec = SPECS.iter().find(|spec| spec.name == "keep-events").expect("it is there");
        assert_eq!((spec.flag(), &*spec.variable()), ("keep-events", "FLOWLINE_KEEP_EVENTS"));
    }
}
