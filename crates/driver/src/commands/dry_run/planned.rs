//! What `--dry-run` prints: a plan as far as it is known, as text or as JSON.

use measure::device;
use measure::saved::pretty;
use plan::{Contender, Draft, Request, Rounds, Settings};
use protocol::KvCache;
use serde::Serialize;
use serde_json::Value;
use statistics::MIN_ROUNDS;

/// The line that has a study's sides, which may differ from cell to cell.
const FRAMEWORKS: &str = "frameworks";

/// The plan of a command.
#[derive(Serialize)]
pub(super) struct Planned {
    command: String,
    request: Value,
    comparisons: Vec<Comparison>,
    /// Sentences on what is decided later.
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
    suite: Option<String>,
    prompts: Vec<PlannedPrompt>,
    batch: usize,
    context: usize,
    new_tokens: usize,
    /// None for a job that is done once.
    rounds: Option<Rounds>,
    /// None where it is left open.
    iterations: Option<u32>,
    /// Whether the precision follows from the device.
    #[serde(skip)]
    precision_is_open: bool,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct PlannedPrompt {
    name: String,
    /// Number of tokens, if it is known without the model's tokenizer.
    tokens: Option<usize>,
}

impl PlannedPrompt {
    pub(super) fn new(name: &str, tokens: Option<usize>) -> PlannedPrompt {
        PlannedPrompt { name: name.to_owned(), tokens }
    }
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
            suite: draft.suite_name().map(str::to_owned),
            prompts: prompts(draft),
            batch: draft.batch(),
            context: draft.context(),
            new_tokens: draft.new_tokens(),
            rounds: Some(draft.rounds()),
            iterations: draft.iterations(),
            precision_is_open: request.precisions.is_empty(),
        }
    }

    pub(super) fn of_job(
        request: &Request,
        contender: Contender,
        prompts: Vec<PlannedPrompt>,
        new_tokens: usize,
    ) -> Resolved {
        Resolved {
            model: request.model().to_owned(),
            device: request.device.clone(),
            threads: contender.threads,
            suite: None,
            prompts,
            batch: 1,
            context: 0,
            new_tokens,
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
            ("prompts", self.work()),
        ];
        if self.batch > 1 {
            lines.push(("batch", self.batch.to_string()));
        }
        if self.context > 0 {
            lines.push(("context", count(self.context, "token")));
        }
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

    /// A column, with what differs from column to column.
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
        if contender.kv_cache == KvCache::Off {
            settings.push("no KV cache".to_owned());
        }
        format!("{}: {}", contender.label, settings.join(", "))
    }

    fn work(&self) -> String {
        let lengths: Option<Vec<String>> =
            self.prompts.iter().map(|prompt| prompt.tokens.map(|tokens| tokens.to_string())).collect();
        let of_suite = self.suite.as_ref().map_or_else(String::new, |suite| format!(" of suite {suite}"));
        let tokens = lengths.map_or_else(String::new, |mut lengths| {
            lengths.dedup();
            format!(", {} tokens", lengths.join(" and "))
        });
        let new_tokens = match self.new_tokens {
            0 => String::new(),
            new_tokens => format!(", {} each", count(new_tokens, "new token")),
        };
        format!("{}{of_suite}{tokens}{new_tokens}", self.prompts.len())
    }

    fn open(&self) -> Vec<String> {
        let mut open = Vec::new();
        if self.prompts.iter().any(|prompt| prompt.tokens.is_none()) {
            open.push("prompts are counted once the model is prepared".to_owned());
        }
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

/// The prompts of a comparison: of the suite, or its first one at each of several lengths.
fn prompts(draft: &Draft) -> Vec<PlannedPrompt> {
    if !draft.prompt_lengths().is_empty() {
        let at = |&length: &u32| PlannedPrompt::new(&format!("{length} tokens"), Some(length as usize));
        return draft.prompt_lengths().iter().map(at).collect();
    }
    let all = draft.suite().prompts.iter().enumerate();
    let planned = all.map(|(index, prompt)| {
        let name = prompt.name.clone().unwrap_or_else(|| format!("prompt {}", index + 1));
        let given = prompt.tokens.as_ref().map(Vec::len);
        PlannedPrompt { name, tokens: draft.prompt_tokens().or(given) }
    });
    planned.collect()
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

    /// The values that all comparisons share, then the comparisons, then what is still open.
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

fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
