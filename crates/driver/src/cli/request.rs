//! What was typed of a request. It is applied to a base: the default request, that of a suite, or that of a run to be
//! measured again. A flag that was not typed leaves the base as it is.

use std::path::{Path, PathBuf};

use bundle::Precision;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, ColorChoice, Command, FromArgMatches};
use comparison::plan::work::{encode, graph};
use comparison::plan::{
    Artefact, Audio, Dims, Failure, NamedInput, PromptSource, Request, Result, SamplingAsked, State,
    StudySettings, flags,
};

use super::help::OUTPUT;

/// The flags of a request as typed: those of its fields, which it declares itself, and those of another form.
#[derive(Debug, Clone)]
pub(crate) struct RequestArgs {
    /// What was typed, without values by default.
    typed: ArgMatches,
    model: ModelArgs,
    pub(crate) prompts: PromptFlags,
    graph: GraphFlags,
}

/// The flag for what is so anyway.
const FAIR: &str = "fair";

/// Conditions of a measurement: they do not decide what is measured.
const CONDITIONS: [&str; 3] = ["accept_noise", "patience_s", "seed"];

impl Args for RequestArgs {
    fn augment_args(command: Command) -> Command {
        let command = ModelArgs::augment_args(Request::augment_args_for_update(command));
        let command = PromptFlags::augment_args(command);
        let fair = Arg::new(FAIR).long("fair-comparison").action(ArgAction::SetTrue);
        let fair =
            fair.help("Strike what breaks a fairness rule: it has no part in verdicts. This is the default");
        let fair = fair.conflicts_with("fair_comparison").help_heading(flags::EXPERT).hide_short_help(true);
        GraphFlags::augment_args(command).arg(fair)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RequestArgs::augment_args(command)
    }
}

impl FromArgMatches for RequestArgs {
    fn from_arg_matches(matches: &ArgMatches) -> clap::error::Result<RequestArgs> {
        let mut typed = matches.clone();
        for flag in RequestArgs::augment_args(Command::new("request")).get_arguments() {
            let id = flag.get_id().as_str();
            // A flag without a value is false by default, which must not replace what the base says.
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                typed.try_clear_id(id).map_err(|error| {
                    clap::Error::raw(clap::error::ErrorKind::InvalidValue, error.to_string())
                })?;
            }
        }
        Ok(RequestArgs {
            typed,
            model: ModelArgs::from_arg_matches(matches)?,
            prompts: PromptFlags::from_arg_matches(matches)?,
            graph: GraphFlags::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> clap::error::Result<()> {
        *self = RequestArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl RequestArgs {
    /// The typed flags applied to the defaults.
    pub(crate) fn request(&self) -> Request {
        self.applied_to(Request::default())
    }

    /// Whether a flag was typed that decides what to measure.
    pub(crate) fn say_what_to_measure(&self) -> bool {
        let flags = RequestArgs::augment_args(Command::new("request"));
        let mut ids = flags.get_arguments().map(|flag| flag.get_id().as_str());
        ids.any(|id| !CONDITIONS.contains(&id) && self.has(id))
    }

    fn has(&self, flag: &str) -> bool {
        self.typed.contains_id(flag)
    }

    /// `request` with the typed flags applied to it.
    pub(crate) fn applied_to(&self, mut request: Request) -> Request {
        self.model.apply_to(&mut request);
        if self.has("quantize") {
            request.precisions.clear();
        }
        // Neither way of decoding draws, and another temperature is another sampler.
        if self.has("decode") || self.has("temperature") {
            request.sampling = SamplingAsked::default();
        }
        request
            .update_from_arg_matches(&self.typed)
            .expect("the values were parsed as those of these fields");
        request.fair_comparison |= self.has(FAIR);
        self.prompts.apply_to(&mut request);
        self.graph.apply_to(&mut request);
        request
    }
}

/// Flags for prompts and batches, each of which takes the place of the others.
#[derive(Debug, Clone, Args)]
pub(crate) struct PromptFlags {
    /// A prompt; may be given several times
    #[arg(long, conflicts_with_all = ["prompts", "suite"], help_heading = flags::WORK)]
    prompt: Vec<String>,
    /// Prompts from a file: one a line, pairs of texts in a .jsonl file, or TOML as a suite
    #[arg(long = "prompt-file", visible_alias = "texts", value_name = "FILE", conflicts_with = "suite",
          help_heading = flags::WORK, hide_short_help = true)]
    prompts: Option<PathBuf>,
    /// Prompts and settings by the name of a suite
    #[arg(long, value_name = "NAME", help_heading = flags::WORK, hide_short_help = true)]
    pub(crate) suite: Option<String>,
    #[arg(long, help = batch_help(), value_name = "N|max", value_delimiter = ',', value_parser = parse_batch,
          help_heading = flags::WORK, hide_short_help = true)]
    batch: Vec<Batch>,
}

/// A number of sequences, or the largest that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Batch {
    Number(u32),
    Max,
}

fn batch_help() -> String {
    let number =
        "Sequences computed together [default: 1]; max searches the largest number that fits into memory";
    format!("{number}; {}", encode::BATCH_HELP)
}

fn parse_batch(text: &str) -> std::result::Result<Batch, String> {
    match text.parse::<u32>() {
        _ if text == "max" => Ok(Batch::Max),
        Ok(number @ 1..=4096) => Ok(Batch::Number(number)),
        _ => Err("max, or a number from 1 to 4096".into()),
    }
}

impl PromptFlags {
    fn apply_to(&self, request: &mut Request) {
        match (self.prompt.as_slice(), &self.prompts, &self.suite) {
            ([], None, None) => {}
            ([], Some(file), _) => request.prompts = PromptSource::File(file.clone()),
            ([], None, Some(suite)) => request.prompts = PromptSource::Suite(suite.clone()),
            (texts, _, _) => request.prompts = PromptSource::Texts(texts.to_vec()),
        }
        if !self.batch.is_empty() {
            let numbers = self.batch.iter().filter_map(|batch| match batch {
                Batch::Number(number) => Some(*number),
                Batch::Max => None,
            });
            request.batch = numbers.collect();
            request.batch_max = self.batch.contains(&Batch::Max);
            if request.batch_max && self.batch.len() > 1 {
                let refused = Some("--batch max is one size: leave the others out".into());
                request.study = StudySettings { refused, ..std::mem::take(&mut request.study) };
            }
        }
    }
}

/// Flags for an ONNX file: sizes of its free dimensions, and values of its inputs.
#[derive(Debug, Clone, Args)]
pub(crate) struct GraphFlags {
    /// Sizes of an ONNX file's free dimensions: batch=1,width=640. Several sizes of one, as batch=1,8, make a case each
    #[arg(long, value_name = "NAME=N,…", action = ArgAction::Append, help_heading = graph::TOPIC.1,
          hide_short_help = true)]
    dim: Vec<Dims>,
    /// What an input of an ONNX file is given: ids=0..30000 draws, rate=16000 is one value, scales=[0,1] are two,
    /// images=FILE.npy an array, images=FILE.png:-1..1 a picture, samples=FILE.wav:512 sound, a piece each run. Give
    /// it again for each further input [default: drawn, floats from 0 to 1, whole numbers 0 and 1]
    #[arg(long, value_name = "NAME=LOW..HIGH|NUMBER|FILE", action = ArgAction::Append, allow_hyphen_values = true,
          help_heading = graph::TOPIC.1, hide_short_help = true)]
    input: Vec<NamedInput>,
    /// Outputs of an ONNX file that its next run is fed with: stateN=state; none feeds nothing [default: told by
    /// names such as stateN and state, hn and h]
    #[arg(long, value_name = "OUT=IN,…", help_heading = graph::TOPIC.1, hide_short_help = true)]
    state: Option<State>,
    /// Runs of a request, one after another [default: as many as a file of an input has; 32 with a state; else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = graph::TOPIC.1,
          hide_short_help = true)]
    runs: Option<u32>,
    /// How much audio a run is about, for the real-time factor: seconds that it hears, or OUTPUT=HERTZ that it makes
    #[arg(long, value_name = "SECONDS|OUT=HZ", help_heading = graph::TOPIC.1, hide_short_help = true)]
    audio: Option<Audio>,
    /// A file that a framework runs in place of an ONNX file: what it has made of it, such as tch=model.pt of
    /// TorchScript
    #[arg(long, value_name = "NAME=FILE", action = ArgAction::Append, help_heading = graph::TOPIC.1, hide_short_help = true)]
    artefact: Vec<Artefact>,
}

impl GraphFlags {
    pub(crate) fn is_empty(&self) -> bool {
        self.input.is_empty() && !self.has_more_than_inputs()
    }

    pub(crate) fn has_more_than_inputs(&self) -> bool {
        let GraphFlags { dim, input: _, state, runs, audio, artefact } = self;
        !dim.is_empty() || !artefact.is_empty() || state.is_some() || runs.is_some() || audio.is_some()
    }

    pub(crate) fn apply_to(&self, request: &mut Request) {
        for Dims(dims) in &self.dim {
            request.graph.dims.extend(dims.clone());
        }
        for NamedInput(name, asked) in &self.input {
            request.graph.inputs.insert(name.clone(), asked.clone());
        }
        if let Some(State(state)) = &self.state {
            request.graph.state = Some(state.clone());
        }
        request.graph.runs = self.runs.or(request.graph.runs);
        for Artefact(name, file) in &self.artefact {
            request.graph.artefacts.insert(name.clone(), file.clone());
        }
        if let Some(audio) = &self.audio {
            request.graph.audio = Some(audio.clone());
        }
    }
}

/// Which model runs, and on what: all commands that run one have these flags.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// Name, directory, .gguf, .onnx, hf:owner/name [default: smollm2-135m]
    ///
    /// Names are those of `photofinish list models`; synthetic:NAME is a published shape with drawn weights.
    #[arg(short, long, value_name = "MODEL,…", value_delimiter = ',', help_heading = flags::COMPARE)]
    model: Vec<String>,
    /// f32, bf16, f16, int8, int4, nf4, file [default: f32; on CUDA f16]
    ///
    /// file: the blocks of a quantised GGUF as they are.
    #[arg(long, value_parser = flags::precision(), value_delimiter = ',', help_heading = flags::COMPARE,
          hide_possible_values = true)]
    precision: Vec<Precision>,
    /// auto, cpu or cuda[:N] (or gpu) [default: cpu]
    ///
    /// auto is the first GPU, if every selected framework supports it.
    #[arg(long, value_parser = flags::device, help_heading = flags::COMPARE)]
    device: Option<String>,
    /// Threads that may compute at once [default: all cores]
    ///
    /// All are those that this process may use.
    #[arg(short, long, value_name = "N", value_delimiter = ',', value_parser = flags::threads,
          help_heading = flags::COMPARE)]
    threads: Vec<u32>,
    /// Turn off graph optimisation and JIT for all frameworks
    #[arg(long, help_heading = flags::EXPERT, hide_short_help = true)]
    no_jit: bool,
    /// Time limit of one worker process: 90s, 10m [default: 600s]
    #[arg(long, value_name = "TIME", value_parser = flags::timeout, help_heading = flags::EXPERT, hide_short_help = true)]
    timeout: Option<u64>,
}

/// The models of a list that was divided at its commas: a comma may be part of a path.
pub(crate) fn models(parts: &[String]) -> Vec<String> {
    let mut models = Vec::new();
    let mut rest = parts;
    while !rest.is_empty() {
        let joined = (2..=rest.len()).map(|count| (count, rest[..count].join(",")));
        let path = joined.filter(|(_, path)| Path::new(path).exists()).last();
        let (count, model) = path.unwrap_or_else(|| (1, rest[0].clone()));
        models.push(model);
        rest = &rest[count..];
    }
    models
}

impl ModelArgs {
    /// A request for commands that are not comparisons.
    pub(crate) fn request(&self) -> Request {
        let mut request = Request::default();
        self.apply_to(&mut request);
        request
    }

    fn apply_to(&self, request: &mut Request) {
        if !self.model.is_empty() {
            request.models = models(&self.model);
        }
        if !self.precision.is_empty() {
            (request.precisions, request.quantize) = (self.precision.clone(), Vec::new());
        }
        if let Some(device) = &self.device {
            request.device.clone_from(device);
        }
        if !self.threads.is_empty() {
            request.threads.clone_from(&self.threads);
        }
        request.jit &= !self.no_jit;
        request.timeout_s = self.timeout.unwrap_or(request.timeout_s);
    }
}

/// How much is shown, and in what colours. These flags may follow every command.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ScreenArgs {
    /// Show everything: figures by prompt, spreads, memory by part, every warning
    #[arg(short, long, global = true, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) verbose: bool,
    /// Colours in tables and sentences; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_name = "auto|always|never", default_value_t = ColorChoice::Auto,
          hide_default_value = true, hide_possible_values = true, help_heading = OUTPUT, hide_short_help = true)]
    pub(crate) color: ColorChoice,
}

/// The flag that puts a prompt through the model's chat template.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ChatFlag {
    /// Put every prompt through the model's own chat template, as a message of the user's
    #[arg(long, help_heading = flags::WORK, hide_short_help = true)]
    pub(crate) chat: bool,
}

impl ChatFlag {
    /// Refuses a chat without a text.
    pub(crate) fn check(self, prompt: Option<&str>) -> Result<()> {
        if self.chat && prompt.is_none() {
            return Err(Failure::usage("--chat needs a text: give --prompt, not --tokens"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of a line applied to a request.
    fn typed(line: &str, base: &Request) -> Request {
        let command = RequestArgs::augment_args(Command::new("request").no_binary_name(true));
        let matches = command.try_get_matches_from(line.split_whitespace()).unwrap();
        RequestArgs::from_arg_matches(&matches).unwrap().applied_to(base.clone())
    }

    #[test]
    fn help_tells_the_defaults_of_a_request() {
        use comparison::plan::USUAL_BUDGET_MIN;
        let Request { models, timeout_s, margin_percent, patience_s, delay_s, .. } = Request::default();
        let defaults = [
            ("model", models[0].clone()),
            ("timeout", format!("{timeout_s}s")),
            ("time_budget_min", format!("{USUAL_BUDGET_MIN}m")),
            ("margin_percent", format!("{margin_percent}%")),
            ("patience_s", format!("{patience_s}s")),
            ("delay_s", format!("{delay_s}s")),
        ];
        let command = RequestArgs::augment_args(Command::new("compare"));
        for (name, default) in defaults {
            let flag = command.get_arguments().find(|flag| flag.get_id() == name).unwrap();
            let help = flag.get_help().unwrap().to_string();
            assert!(help.ends_with(&format!("[default: {default}]")), "{name}: {help}");
        }
    }

    #[test]
    fn a_typed_flag_replaces_its_field_and_the_others_stay_as_they_were() {
        let usual = Request::default();
        let earlier = Request {
            margin_percent: 7.0,
            jit: false,
            accept_noise: true,
            fair_comparison: false,
            batch: vec![4],
            cold_load: Some(false),
            prompts: PromptSource::Suite("smoke".into()),
            quantize: vec![Precision::Int8],
            ..usual.clone()
        };
        assert_eq!(typed("", &earlier), earlier);
        let change = |line: &str, change: fn(&mut Request)| {
            let mut expected = earlier.clone();
            change(&mut expected);
            assert_eq!(typed(line, &earlier), expected, "{line}");
        };
        change("--batch 2", |request| request.batch = vec![2]);
        change("--batch max", |request| (request.batch, request.batch_max) = (Vec::new(), true));
        change("--prompt a", |request| request.prompts = PromptSource::Texts(vec!["a".into()]));
        change("--precision f32", |request| {
            (request.precisions, request.quantize) = (vec![Precision::F32], Vec::new());
        });
        change("--fair-comparison --quick", |request| {
            (request.fair_comparison, request.quick) = (true, true)
        });
        change("--margin 3% --cold-load on -n 1,2", |request| {
            (request.margin_percent, request.cold_load, request.new_tokens) = (3.0, Some(true), vec![1, 2]);
        });
        let strict = typed("--no-jit --allow-unfair --chat", &usual);
        assert_eq!((strict.jit, strict.fair_comparison, strict.chat), (false, false, true));
        assert!(typed("--batch 2,max", &usual).study.refused.is_some());
        let searched = typed("--batch max", &usual);
        assert_eq!(typed("--batch 2", &searched), Request { batch: vec![2], ..usual });
    }

    #[test]
    fn another_way_of_decoding_takes_the_place_of_a_sampler() {
        let drawn = typed("--temperature 0.5 --top-k 3", &Request::default());
        assert_eq!((drawn.sampling.temperature, drawn.sampling.top_k), (Some(0.5), Some(3)));
        assert_eq!(typed("--temperature 1", &drawn).sampling.top_k, None);
        assert_eq!(typed("--decode greedy", &drawn).sampling, SamplingAsked::default());
    }

    #[test]
    fn a_comma_of_a_path_divides_no_list() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a,b,c");
        std::fs::create_dir(&path).unwrap();
        let path = path.to_str().unwrap();
        let typed = format!("one,{path},two");
        let parts: Vec<String> = typed.split(',').map(str::to_owned).collect();
        assert_eq!(models(&parts), ["one", path, "two"]);
        assert_eq!(models(&["a".to_owned(), "b".to_owned()]), ["a", "b"]);
    }
}
