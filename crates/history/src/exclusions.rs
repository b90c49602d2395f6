//! Records that are excluded from a development over time, and why.

use serde::Serialize;
use serde_json::Value;

use crate::record::Record;

/// Why a record is excluded from the runs that are shown over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Apart {
    /// It broke a fairness rule.
    Struck,
    /// The machine was too noisy for a verdict, or noisy, and that was accepted.
    Noisy,
    /// It was only a first look.
    Quick,
    /// It is one arm of an A/B study.
    Ab,
    /// It is a cell of another study.
    Sweep,
}

impl Apart {
    pub const ALL: [Apart; 5] = [Apart::Struck, Apart::Noisy, Apart::Quick, Apart::Ab, Apart::Sweep];

    /// The reason in a word.
    pub fn words(self) -> &'static str {
        match self {
            Apart::Struck => "struck",
            Apart::Noisy => "noisy",
            Apart::Quick => "quick",
            Apart::Ab => "A/B",
            Apart::Sweep => "sweep",
        }
    }
}

impl Record {
    /// Every reason to exclude this record; empty for most records.
    pub fn apart(&self) -> Vec<Apart> {
        let study = self.study.as_deref().filter(|study| !study.is_empty());
        let is_ab = study.is_some_and(|study| study.split(' ').next() == Some("ab"));
        let reasons = [
            (Apart::Struck, self.state == "struck"),
            (Apart::Noisy, self.noise.is_some() || self.settings.noise_accepted.is_some()),
            (Apart::Quick, self.is_quick()),
            (Apart::Ab, is_ab),
            (Apart::Sweep, study.is_some() && !is_ab),
        ];
        reasons.into_iter().filter(|(_, applies)| *applies).map(|(reason, _)| reason).collect()
    }

    /// Whether it was a first look. Records without this field have a request or a command that says so: a
    /// suite for first looks accepts noise without the user asking for it.
    fn is_quick(&self) -> bool {
        if let Some(quick) = self.settings.quick {
            return quick;
        }
        let asked = |name: &str| self.request.as_ref()?.get(name).and_then(Value::as_bool);
        asked("quick") == Some(true)
            || (self.settings.accept_noise && asked("accept_noise") == Some(false))
            || self.command.iter().any(|word| word == "--quick")
    }
}

/// How many of these records are excluded for each reason, in words: "3 sweep, 1 noisy". A record with
/// several reasons counts for each.
pub fn counted<'a>(records: impl Iterator<Item = &'a Record> + Clone) -> String {
    let count = |reason: Apart| records.clone().filter(|record| record.apart().contains(&reason)).count();
    let counts = Apart::ALL.into_iter().map(|reason| (count(reason), reason.words()));
    let told: Vec<String> =
        counts.filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    told.join(", ")
}
