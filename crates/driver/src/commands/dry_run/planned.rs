//! The output of `--dry-run`: a plan as far as it is known, as text or as JSON.

use measure::device;
use measure::saved::pretty;
use plan::{Contender, Draft, Request, Rounds, Settings};
use serde::Serialize;
use serde_json::Value;
use statistics::MIN_ROUNDS;

use crate::commands::work::requests::{self, Requests, count};

/// The line that has a study's sides, which may differ from cell to cell.
const FRAMEWORKS: &str = "frameworks";

/// The plan of a command.
#[derive(Serialize)]
pub(super) struct Planned {
    command: String,
    request: Value,
    comparisons: Vec<Comparison>,
    /// Sentences on the open points.
    open: Vec<String>,
}

/// One comparison, or the one job of a framework.
#[derive(Serialize)]
pub(super) struct Comparison {
    settings: Settings,
    /// Its place in the study, in words.
    #[serde(skip)]
    pub(super) name: String,
    plan: Option<Resolved>,
    /// The reason why it cannot run.
    refused: Option<String>,
}

/// The values that are resolved without the model, named as in plan.json.
#[derive(Serialize)]
pub(super) struct Resolved {
    model: String,
    contenders: Vec<Contender>,
    device: String,
    threads: usize,
    #[serde(flatten)]
    work: Requests,
    /// None for a job that is done once.
    rounds: Option<Rounds>,
    /// None where it is left open.
    iterations: Option<u32>,
    /// Whether the precision follows from the device.
    #[serde(skip)]
    precision_is_open: bool,
}

impl Comparison {
    pub(super) fn planned(settings: Settings, plan: Resolved) -> Comparison {
        Comparison { settings, name: String::new(), plan: Some(plan), refused: None }
    }

    pub(super) fn refused(settings: Settings, reason: String) -> Comparison {
        Comparison { settings, name: String::new(), plan: None, refused: Some(reason) }
    }
}

impl Resolved {
    pub(super) fn new(draft: &Draft) -> Resolved {
        let request = draft.request();
        Resolved {
            model: request.model().to_owned(),
            contenders: draft.contenders().to_vec(),
            device: request.device.clone(),
            threads: draft.threads(),
            work: Requests::new(draft),
            rounds: Some(draft.rounds()),
            iterations: draft.iterations(),
            precision_is_open: request.precisions.is_empty(),
        }
    }

    pub(super) fn of_job(
        request: &Request,
        contender: Contender,
        prompts: Vec<(String, Option<usize>)>,
        added: usize,
    ) -> Resolved {
        Resolved {
            model: request.model().to_owned(),
            device: request.device.clone(),
            threads: contender.threads,
            work: Requests::of_job(prompts, added),
            rounds: None,
            iterations: None,
            precision_is_open: request.precisions.is_empty(),
            contenders: vec![contender],
        }
    }

    /// The values for people, each with its name.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let contenders = self.contenders.iter().map(|contender| self.contender(contender));
        let mut lines = vec![
            ("model", self.model.clone()),
            (FRAMEWORKS, contenders.collect::<Vec<_>>().join("; ")),
            ("device", self.device.clone()),
            ("threads", self.threads.to_string()),
        ];
        lines.extend(self.work.lines());
        match self.rounds {
            None => return lines,
            Some(Rounds::Fixed(rounds)) => lines.push(("rounds", rounds.to_string())),
            Some(Rounds::Auto { max, budget_s }) => {
                let minutes = budget_s / 60.0;
                let rounds =
                    format!("{MIN_ROUNDS} to {max}, until verdicts are clear or {minutes} min are used up");
                lines.push(("rounds", rounds));
            }
        }
        let iterations =
            self.iterations.map_or("chosen from costs and variances".to_owned(), |count| count.to_string());
        lines.push(("iterations", iterations));
        lines
    }

    /// A column, with the settings that differ between columns.
    fn contender(&self, contender: &Contender) -> String {
        let mut settings = vec![contender.precision.name().to_owned()];
        if contender.threads != self.threads {
            settings.push(count(contender.threads, "thread"));
        }
        if contender.shards > 1 {
            settings.push(format!("{} devices", contender.shards));
        }
        if !contender.jit {
            settings.push("no JIT".to_owned());
        }
        settings.extend(requests::without(contender).map(str::to_owned));
        format!("{}: {}", contender.label, settings.join(", "))
    }

    fn open(&self) -> Vec<String> {
        let mut open = Vec::new();
        open.extend(self.work.open().map(str::to_owned));
        if self.device == device::AUTO {
            open.push("--device auto is decided once the workers can be asked".to_owned());
            if self.precision_is_open {
                open.push("on a GPU the precision is f16, unless --precision names another".to_owned());
            }
        }
        if self.rounds.is_some() {
            open.push("what fits into memory together is known once the model is prepared".to_owned());
        }
        open
    }
}

impl Planned {
    pub(super) fn new(command: &str, request: Value, comparisons: Vec<Comparison>) -> Planned {
        let mut open = Vec::new();
        for sentence in comparisons.iter().filter_map(|one| one.plan.as_ref()).flat_map(Resolved::open) {
            if !open.contains(&sentence) {
                open.push(sentence);
            }
        }
        Planned { command: command.to_owned(), request, comparisons, open }
    }

    pub(super) fn json(&self) -> String {
        pretty(self)
    }

    /// The values that all comparisons share, then the comparisons, then the open points.
    pub(super) fn text(&self) -> String {
        let many = match self.comparisons.len() {
            1 => String::new(),
            several => format!("{several} comparisons; "),
        };
        let mut text = format!("{}: {many}nothing is measured\n\n", self.command);
        let plans = || self.comparisons.iter().filter_map(|one| one.plan.as_ref());
        let all: Vec<_> = plans().map(Resolved::lines).collect();
        let first = all.first().into_iter().flatten();
        let shared: Vec<_> = first.filter(|line| all.iter().all(|lines| lines.contains(line))).collect();
        for (name, value) in &shared {
            text += &format!("{name:<12}{value}\n");
        }
        text.push('\n');
        if self.comparisons.len() > 1 {
            let says_frameworks = !shared.iter().any(|(name, _)| *name == FRAMEWORKS);
            for (index, comparison) in self.comparisons.iter().enumerate() {
                text += &format!("{:>4}  {}\n", index + 1, comparison.described(says_frameworks));
            }
            text.push('\n');
        }
        self.open.iter().for_each(|sentence| text += &format!("{sentence}\n"));
        text
    }
}

impl Comparison {
    fn described(&self, says_frameworks: bool) -> String {
        let mut parts = vec![self.name.clone()];
        if let Some(plan) = self.plan.as_ref().filter(|_| says_frameworks) {
            parts.extend(
                plan.lines().into_iter().filter(|(name, _)| *name == FRAMEWORKS).map(|(_, value)| value),
            );
        }
        parts.extend(self.refused.iter().map(|reason| format!("cannot run: {reason}")));
        parts.retain(|part| !part.is_empty());
        parts.join(" | ")
    }
}
