//! `--dry-run`: resolves a command as far as that is possible without building, fetching or preparing anything, prints
//! the plan, and measures nothing. Of a command that measures nothing the arguments alone are checked.

use comparison::judge::records::HISTORY;
use comparison::judge::study::{self, varied};
use comparison::plan::flags;
use comparison::plan::sweep::SweepKind;
use comparison::plan::{
    Contender, Draft, Failure, PromptSource, Request, Result, Rounds, Settings, StudyKind, StudyPlan,
    StudyRequest,
};
use protocol::untrusted;
use serde::Serialize;
use serde_json::Value;
use statistics::MIN_ROUNDS;

use super::check::commits;
use super::{compare, encode, history, parity, single};
use crate::cli::work::{OnArgs, ProfileArgs};
use crate::cli::{Cli, Command, CompareArgs, Format};
use crate::measure::resolve::{self, available_threads};
use crate::measure::results::pretty;
use crate::measure::{self, Places, provision};
use crate::output::print;

pub(super) fn dry_run(cli: &Cli) -> Result<u8> {
    let (planned, format) = match &cli.command {
        None => comparison(&cli.compare)?,
        Some(Command::Compare(args)) => comparison(args)?,
        Some(Command::Sweep(args)) => study(&args.study(), &args.compare)?,
        Some(Command::Parity(args)) => {
            let (request, places) = (parity::request(args)?, args.here.places.find()?);
            (comparisons("parity", &request, std::slice::from_ref(&request), &places)?, args.format)
        }
        Some(Command::Run(args)) => one(("run", &args.on), single::described(args)?, args.format)?,
        Some(Command::Profile(args)) => profiled(args)?,
        Some(Command::Check(args)) if args.base.is_some() => {
            let (_, sides) = commits(args)?;
            return said(&format!("check: {sides}; nothing was done\n"));
        }
        Some(_) => return said(VALID),
    };
    said(&match format {
        Format::Json => pretty(&planned) + "\n",
        Format::Table | Format::Markdown | Format::Csv => planned.text(),
    })
}

const VALID: &str = "the arguments are valid; nothing was done\n";

fn said(text: &str) -> Result<u8> {
    print(&untrusted::lines(text)).map(|()| 0)
}

fn comparison(args: &CompareArgs) -> Result<(Planned, Format)> {
    compare::check(args)?;
    let places = args.here.places.find()?;
    if let Some(asked) = compare::study_of_suite(args, &places)? {
        return Ok((cells(&asked, &asked.plan(&places.on(&asked.request.device))?, &places)?, args.format()));
    }
    let request = args.request.request();
    if request.serving.is_study() {
        let asked = StudyRequest { kind: StudyKind::Sweep(SweepKind::Callers), request };
        return study(&asked, args);
    }
    let each = match compare::at_each_precision(&request) {
        none if none.is_empty() => vec![request.clone()],
        each => each,
    };
    let mut planned = comparisons("compare", &request, &each, &places)?;
    planned.registered = request.seed.map(|seed| request.registered(seed));
    if planned.registered.is_none() {
        planned.open.push("with --seed N it has a digest to register in advance".to_owned());
    }
    let history = compare::results_dir(args.results_dir.as_ref(), &places).join(HISTORY);
    let known = history::read(&history)?.records;
    let environment = measure::places::read(&places, String::new());
    for (request, one) in each.iter().zip(&mut planned.comparisons) {
        let Some(plan) = &mut one.plan else { continue };
        let rounds = plan.rounds.unwrap_or(Rounds::Fixed(0));
        let power = compare::expected(request, plan.contenders.len(), rounds, known.clone(), &environment);
        plan.expected = power.map(|power| power.words());
    }
    Ok((planned, args.format()))
}

/// Comparisons of which each must be possible.
fn comparisons(command: &str, request: &Request, each: &[Request], places: &Places) -> Result<Planned> {
    let resolved = |request: &Request| -> Result<Comparison> {
        let draft = resolve::draft(request, places)?;
        Ok(Comparison::new(Settings::new(), Ok(Resolved::new(&draft, kind(request, places)?))))
    };
    let comparisons: Result<Vec<Comparison>> = each.iter().map(resolved).collect();
    Ok(Planned::new(command, request.to_json(), comparisons?))
}

/// Whether the model turns texts into vectors or scores, and whether it hears. Nothing is fetched for that.
fn kind(request: &Request, places: &Places) -> Result<(bool, bool)> {
    let model = request.model();
    if model.starts_with("hf:") {
        return Ok((false, false));
    }
    Ok((provision::encodes(places, model)?, provision::hears(places, model)?))
}

fn study(asked: &StudyRequest, args: &CompareArgs) -> Result<(Planned, Format)> {
    compare::check(args)?;
    let places = args.here.places.find()?;
    Ok((cells(asked, &asked.plan(&places.on(&asked.request.device))?, &places)?, args.format()))
}

/// The cells of a study. A cell that cannot run is a row with its reason, as in the study itself.
fn cells(asked: &StudyRequest, study: &StudyPlan, places: &Places) -> Result<Planned> {
    let axes = varied(&study.settings());
    let mut comparisons = Vec::new();
    let mut failures = Vec::new();
    for planned in &study.cells {
        let plan = match resolve::draft(&planned.request, places) {
            Ok(draft) => Ok(Resolved::new(&draft, kind(&planned.request, places)?)),
            Err(failure) => {
                let reason = failure.to_string();
                failures.push(failure);
                Err(reason)
            }
        };
        let name = study::name(&planned.settings, &axes);
        comparisons.push(Comparison { name, ..Comparison::new(planned.settings.clone(), plan) });
    }
    // The same mistake in every cell is one of the request itself.
    let is_whole = failures.len() == comparisons.len()
        && failures.iter().all(|failure| failure.to_string() == failures[0].to_string());
    match failures.pop() {
        Some(failure) if is_whole => Err(failure),
        _ => {
            let request = serde_json::to_value(asked).map_err(|e| Failure::failed(e.to_string()))?;
            Ok(Planned::new(&study.name, request, comparisons))
        }
    }
}

/// The task of one framework: `run` or `profile`.
fn one(
    (command, on): (&str, &OnArgs),
    (prompts, added): (Vec<Prompt>, usize),
    format: Format,
) -> Result<(Planned, Format)> {
    let places = on.here.places.find()?;
    let (request, engine) = single::asked(on, &places)?;
    provision::find_model(&places, request.model())?;
    let contender = Contender::new(on.framework.clone(), engine, &request, available_threads());
    let resolved = Resolved {
        model: request.model().to_owned(),
        device: request.device.clone(),
        threads: contender.threads,
        prompts,
        batch: 1,
        new_tokens: added,
        precision_is_open: request.precisions.is_empty(),
        contenders: vec![contender],
        ..Resolved::default()
    };
    let comparison = Comparison::new(Settings::new(), Ok(resolved));
    Ok((Planned::new(command, request.to_json(), vec![comparison]), format))
}

/// The task of `profile`, whose tokens are drawn.
fn profiled(args: &ProfileArgs) -> Result<(Planned, Format)> {
    let (tokens, added) = match args.trace {
        true => (args.work.of_trace().0 as usize, args.work.of_trace().1 as usize),
        false => args.work.lengths(),
    };
    let prompt = Prompt { name: "prompt".to_owned(), tokens: Some(tokens) };
    one(("profile", &args.on), (vec![prompt], added), Format::Table)
}

// The output of `--dry-run`: a plan as far as it is known, as text or as JSON.

/// The line that has a study's sides, which may differ from cell to cell.
const FRAMEWORKS: &str = "frameworks";

#[derive(Serialize)]
struct Planned {
    command: String,
    request: Value,
    /// What to register in advance; `None` where no seed was given, or none is drawn.
    registered: Option<String>,
    comparisons: Vec<Comparison>,
    /// Sentences on the open points.
    open: Vec<String>,
}

/// One comparison, or the one job of a framework.
#[derive(Serialize)]
struct Comparison {
    settings: Settings,
    /// Its place in the study, in words.
    #[serde(skip)]
    name: String,
    plan: Option<Resolved>,
    /// The reason why it cannot run.
    refused: Option<String>,
}

/// The values that are resolved without the model, named as in plan.json.
#[derive(Default, Serialize)]
struct Resolved {
    model: String,
    contenders: Vec<Contender>,
    device: String,
    threads: usize,
    suite: Option<String>,
    prompts: Vec<Prompt>,
    batch: usize,
    context: usize,
    new_tokens: usize,
    /// None for a job that is done once.
    rounds: Option<Rounds>,
    /// None where it is left open.
    iterations: Option<u32>,
    /// What it can show, in words, where runs of its case on this machine are known.
    expected: Option<String>,
    /// Whether the precision follows from the device.
    #[serde(skip)]
    precision_is_open: bool,
    /// Batches of texts and how vectors or scores are made, in words.
    #[serde(skip)]
    encoding: Option<[String; 2]>,
    /// What the inputs of an ONNX file are given, in words.
    #[serde(skip)]
    inputs: Option<String>,
}

#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Prompt {
    pub(super) name: String,
    /// Number of tokens, if it is known without the model's tokenizer.
    pub(super) tokens: Option<usize>,
}

/// The prompts of a comparison: of the suite, or its first one at each of several lengths.
fn prompts(draft: &Draft) -> Vec<Prompt> {
    if !draft.request.prompt_lengths.is_empty() {
        let at = |&length: &u32| Prompt { name: format!("{length} tokens"), tokens: Some(length as usize) };
        return draft.request.prompt_lengths.iter().map(at).collect();
    }
    let all = draft.suite.prompts.iter().enumerate();
    let planned = all.map(|(index, prompt)| {
        let name = prompt.name.clone().unwrap_or_else(|| format!("prompt {}", index + 1));
        let given = prompt.tokens.as_ref().map(Vec::len);
        Prompt { name, tokens: draft.lengths.prompt.or(given) }
    });
    planned.collect()
}

fn count(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

impl Comparison {
    fn new(settings: Settings, plan: std::result::Result<Resolved, String>) -> Comparison {
        let (plan, refused) = match plan {
            Ok(plan) => (Some(plan), None),
            Err(reason) => (None, Some(reason)),
        };
        Comparison { settings, name: String::new(), plan, refused }
    }

    fn described(&self, says_frameworks: bool) -> String {
        let mut parts = vec![self.name.clone()];
        if let Some(plan) = self.plan.as_ref().filter(|_| says_frameworks) {
            parts.push(plan.frameworks());
        }
        parts.extend(self.refused.iter().map(|reason| format!("cannot run: {reason}")));
        parts.retain(|part| !part.is_empty());
        parts.join(" | ")
    }
}

impl Resolved {
    fn new(draft: &Draft, (encodes, hears): (bool, bool)) -> Resolved {
        let request = &draft.request;
        // These texts are others by default.
        let is_graph = !hears && (configs::is_onnx(request.model()) || !request.graph.is_default());
        let has_own = is_graph || hears || encodes && request.prompts == PromptSource::Usual;
        Resolved {
            model: request.model().to_owned(),
            contenders: draft.contenders.clone(),
            device: request.device.clone(),
            threads: draft.threads,
            suite: draft.suite_name.clone().filter(|_| !has_own),
            prompts: if has_own { Vec::new() } else { prompts(draft) },
            batch: draft.batch(),
            context: draft.lengths.context,
            // A transcript has as many as are heard.
            new_tokens: if encodes || is_graph || hears { 0 } else { draft.lengths.new_tokens },
            encoding: encodes.then(|| encode::planned(request)),
            inputs: (is_graph || hears).then(|| {
                let given: Vec<&str> = request.graph.inputs.keys().map(String::as_str).collect();
                match (hears, given.is_empty()) {
                    (true, true) => "the bundled recording".to_owned(),
                    (true, false) => format!("recordings: {}", given.join(", ")),
                    (false, true) => "given: none; the others are drawn".to_owned(),
                    (false, false) => format!("given: {}; the others are drawn", given.join(", ")),
                }
            }),
            rounds: Some(draft.rounds),
            iterations: draft.iterations(),
            expected: None,
            precision_is_open: request.precisions.is_empty(),
        }
    }

    /// The values for people, each with its name.
    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![
            ("model", self.model.clone()),
            (FRAMEWORKS, self.frameworks()),
            ("device", self.device.clone()),
            ("threads", self.threads.to_string()),
        ];
        if let Some([batches, task]) = &self.encoding {
            let texts = if self.prompts.is_empty() { "the bundled ones".to_owned() } else { self.requests() };
            lines.extend([("texts", texts), ("batches", batches.clone()), ("task", task.clone())]);
        } else if let Some(inputs) = &self.inputs {
            lines.push(("inputs", inputs.clone()));
        } else {
            lines.push(("prompts", self.requests()));
        }
        if self.batch > 1 && self.encoding.is_none() {
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
        lines.extend(self.expected.clone().map(|words| ("to expect", words)));
        lines
    }

    fn frameworks(&self) -> String {
        self.contenders.iter().map(|contender| self.contender(contender)).collect::<Vec<_>>().join("; ")
    }

    fn requests(&self) -> String {
        let mut text = self.prompts.len().to_string();
        if let Some(suite) = &self.suite {
            text += &format!(" of suite {suite}");
        }
        let lengths: Option<Vec<usize>> = self.prompts.iter().map(|prompt| prompt.tokens).collect();
        if let Some(mut lengths) = lengths {
            lengths.dedup();
            let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
            text += &format!(", {} tokens", lengths.join(" and "));
        }
        if self.new_tokens > 0 {
            text += &format!(", {} each", count(self.new_tokens, "new token"));
        }
        text
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
        if !contender.cache.is_on() {
            settings.push("no KV cache".to_owned());
        }
        format!("{}: {}", contender.label, settings.join(", "))
    }

    fn open(&self) -> Vec<String> {
        let mut open = Vec::new();
        if self.prompts.iter().any(|prompt| prompt.tokens.is_none()) {
            open.push("prompts are counted once the model is prepared".to_owned());
        }
        if self.device == flags::AUTO {
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
    fn new(command: &str, request: Value, comparisons: Vec<Comparison>) -> Planned {
        let mut open = Vec::new();
        for sentence in comparisons.iter().filter_map(|one| one.plan.as_ref()).flat_map(Resolved::open) {
            if !open.contains(&sentence) {
                open.push(sentence);
            }
        }
        Planned { command: command.to_owned(), request, registered: None, comparisons, open }
    }

    /// The values that all comparisons share, then the comparisons, then the open points.
    fn text(&self) -> String {
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
        if let Some(digest) = &self.registered {
            text += &format!("{:<12}{digest}\n\n", "register");
        }
        self.open.iter().for_each(|sentence| text += &format!("{sentence}\n"));
        text
    }
}
