//! An ONNX file: runs from named tensors to named tensors.

mod sizes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bundle::{Dtype, Graph as Description, GraphInput, Size};
use protocol::{Fed, Feed, GraphCase, GraphWork, Input, KvCache, Load, Output, Sample, Serve, Values};
use serde::{Deserialize, Serialize};
pub use sizes::{Artefact, Audio, Dims, GraphAsked, InputAsked, NamedInput, State, dims};
use sizes::{combinations, named, of_files, recognised, shape_words};

use super::{Describe, Proof, WorkKind};
use crate::plan::serving::UsualRequests;
use crate::plan::work::{self, encode};
use crate::plan::{Failure, PromptSource, Request, Result};

/// The topic of its flags in the help, and their heading.
pub const TOPIC: (&str, &str) = ("onnx", "ONNX files");

/// Operators with random outputs.
const RANDOM: [&str; 6] =
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"];
/// Most cases that sizes of dimensions may make.
const MOST_CASES: usize = 64;
/// Bytes of the inputs of one run.
const MOST_BYTES: u128 = 1 << 33;
/// Requests of several callers.
const USUAL_REQUESTS: UsualRequests = UsualRequests { each: 4, least: 16 };
/// Runs of a request that is a sequence, where their number is not named.
const USUAL_RUNS: usize = 32;
const MOST_RUNS: usize = 10_000;
/// Different sets of inputs of several callers.
const DISTINCT_INPUTS: usize = 8;

/// Runs of a graph, a case for each combination of sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    pub cases: Vec<Run>,
    /// Names of the graph's outputs.
    pub outputs: Vec<String>,
    /// The type of most of its weights, such as `f32` or `int8`.
    pub stored: Option<String>,
    /// If given, one of several callers makes each request, for a run each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Outputs that the next run of a request is fed with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<Fed>,
    /// How much audio a run is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Audio>,
}

/// The inputs of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub name: String,
    pub inputs: Vec<Feed>,
    /// Seed of drawn values.
    pub seed: u64,
    /// Sets of inputs, drawn independently: callers ask for them in turn, a sequence runs one after another.
    #[serde(default = "one")]
    pub sets: usize,
}

fn one() -> usize {
    1
}

/// An array of a file, described by its header. The numbers are in a file of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    pub dtype: Dtype,
    /// That of one run.
    pub shape: Vec<usize>,
    /// Only the numbers, little-endian, row-major.
    pub numbers: PathBuf,
    /// Runs that have a part each; 1 if all have the same.
    pub runs: usize,
}

/// Rejects settings for an ONNX file if the model is none.
pub(super) fn refuse(request: &Request) -> Result<()> {
    if request.graph.is_default() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--dim, --input, --state, --runs, --audio and --artefact are for ONNX files, and {} is none",
        request.model()
    )))
}

/// Resolves runs of an ONNX file. `given`: the arrays of the requested files, by input.
pub fn resolve(
    request: &Request,
    graph: &Description,
    given: &BTreeMap<String, Given>,
    seed: u64,
) -> Result<Graph> {
    let failure = |why: String| Failure::usage(format!("{}: {why}", request.model()));
    let refuse = |why: String| Err(failure(why));
    if let Some(flag) = of_texts(request) {
        return refuse(format!(
            "it is an ONNX file, which takes no {flag}: --dim sets its free dimensions, --input what its inputs are given"
        ));
    }
    let names: Vec<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
    if let Some(unknown) = request.graph.inputs.keys().find(|name| !names.contains(&name.as_str())) {
        let inputs = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return refuse(format!("it has no input {unknown:?}; it has {inputs}"));
    }
    // An input may scale what is drawn to nothing: whether it does, parity says.
    let silences = |asked: &InputAsked| match asked {
        InputAsked::Drawn { low, high } => *low == 0.0 && *high == 0.0,
        InputAsked::Numbers(numbers) => numbers.contains(&0.0),
        _ => false,
    };
    if let Some(operator) = RANDOM.iter().find(|operator| graph.operators.contains_key(**operator))
        && !request.graph.inputs.values().any(silences)
    {
        return refuse(format!(
            "it draws random numbers ({operator}), so that no two runs give the same and nothing can be compared; if an input \
             scales them, give it zeros, such as --input scales=[0,1,0]"
        ));
    }
    let state = state_of(&request.graph, graph).map_err(failure)?;
    let dims = named(graph, &request.graph.dims).map_err(failure)?;
    let of_files = of_files(graph, given).map_err(failure)?;
    let mut cases = Vec::new();
    for sizes in combinations(&dims) {
        cases.push(run(&request.graph, graph, given, (&sizes, &of_files), (&state, seed)).map_err(failure)?);
    }
    if cases.len() > MOST_CASES {
        return refuse(format!(
            "--dim makes {} combinations of sizes; at most {MOST_CASES} are measured",
            cases.len()
        ));
    }
    let load = request.serving.load(USUAL_REQUESTS, seed)?;
    if let Some(load) = load {
        let [case] = &mut cases[..] else {
            return refuse("callers have runs of one size: give each dimension one size with --dim".into());
        };
        let joins = |serve: &Serve| matches!(serve, Serve::Batch { .. });
        if request.serving.serve.iter().any(joins) {
            joined(graph).map_err(failure)?;
        }
        case.sets = if case.is_drawn() { load.requests.min(DISTINCT_INPUTS) } else { 1 };
    }
    let outputs: Vec<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
    let audio = request.graph.audio.clone();
    if let Some(Audio::Output { name, .. }) = &audio
        && !outputs.contains(name)
    {
        return refuse(format!("--audio names {name:?}, and its outputs are {}", outputs.join(", ")));
    }
    let runs = runs_of(request, given, &state).map_err(failure)?;
    if load.is_none() {
        cases.iter_mut().for_each(|case| case.sets = runs);
    } else if !state.is_empty() || runs > 1 {
        return refuse("callers make single runs: leave out --runs, and give --state none".into());
    }
    Ok(Graph { cases, outputs, stored: graph.stored.clone(), load, state, audio })
}

/// The outputs that the next run is fed with.
fn state_of(asked: &GraphAsked, graph: &Description) -> std::result::Result<Vec<Fed>, String> {
    let Some(state) = &asked.state else {
        return Ok(if asked.runs == Some(1) { Vec::new() } else { recognised(graph) });
    };
    for Fed { output, input } in state {
        let from = graph.outputs.iter().find(|known| known.name == *output);
        let to = graph.inputs.iter().find(|known| known.name == *input);
        let (Some(from), Some(to)) = (from, to) else {
            let outputs: Vec<&str> = graph.outputs.iter().map(|known| known.name.as_str()).collect();
            let inputs: Vec<&str> = graph.inputs.iter().map(|known| known.name.as_str()).collect();
            let (outputs, inputs) = (outputs.join(", "), inputs.join(", "));
            return Err(format!("--state {output}={input}: its outputs are {outputs}, its inputs {inputs}"));
        };
        if from.dtype != to.dtype {
            let (given, taken) = (from.dtype, to.dtype);
            return Err(format!(
                "--state {output}={input}: the output is of {given}, and the input takes {taken}"
            ));
        }
    }
    Ok(state.clone())
}

/// Runs of a request.
fn runs_of(
    request: &Request,
    given: &BTreeMap<String, Given>,
    state: &[Fed],
) -> std::result::Result<usize, String> {
    let mut of_files = given.values().map(|array| array.runs).filter(|&runs| runs > 1);
    let of_file = of_files.next();
    if let Some(other) = of_files.find(|&other| Some(other) != of_file) {
        return Err(format!("its files have {} and {other} runs", of_file.unwrap_or(1)));
    }
    let runs = match (request.graph.runs.map(|runs| runs as usize), of_file) {
        (Some(runs), Some(most)) if runs > most => {
            return Err(format!("--runs {runs}, and the file of an input has {most} of them"));
        }
        (Some(runs), _) => runs,
        (None, Some(runs)) => runs,
        (None, None) if state.is_empty() => 1,
        (None, None) => USUAL_RUNS,
    };
    match (1..=MOST_RUNS).contains(&runs) {
        true => Ok(runs),
        false => Err(format!("--runs takes 1 to {MOST_RUNS}")),
    }
}

/// Rejects a graph if its runs cannot be joined along one free dimension, the first of all inputs.
fn joined(graph: &Description) -> std::result::Result<(), String> {
    let first = |input: &GraphInput| match input.shape.as_ref().and_then(|shape| shape.first()) {
        Some(Size::Free(name)) => Some(name.clone()),
        _ => None,
    };
    let mut firsts = graph.inputs.iter().map(first);
    let batch = firsts.next().flatten();
    match batch.is_some() && firsts.all(|other| other == batch) {
        true => Ok(()),
        false => Err("its inputs have no free first dimension in common, along which batch:B:W could join requests: serve \
                      them with shared or pool:K"
            .to_owned()),
    }
}

/// A given flag that does not apply to an ONNX file.
fn of_texts(request: &Request) -> Option<&'static str> {
    let flags = [
        ("prompts", request.prompts != PromptSource::Usual),
        ("--new-tokens", !request.new_tokens.is_empty()),
        ("--prefill-chunk", !request.prefill_chunk.is_empty()),
        ("--shared-prefix", request.shared_prefix > 0),
        ("--prompt-tokens", !request.prompt_tokens.is_empty()),
        ("--prompt-lengths", !request.prompt_lengths.is_empty()),
        ("--context", !request.context.is_empty()),
        ("--batch", !request.batch.is_empty()),
        (encode::FLAGS, !request.encode.is_default()),
        ("--steps, --algorithm and what else denoising takes", !request.denoise.is_default()),
        ("--temperature", request.sampling.temperature.is_some()),
        ("--kv-cache off", request.kv_cache == KvCache::Off),
        ("--chat", request.chat),
    ];
    flags.into_iter().find(|(_, is_asked)| *is_asked).map(|(flag, _)| flag)
}

fn run(
    asked: &GraphAsked,
    graph: &Description,
    given: &BTreeMap<String, Given>,
    (sizes, of_files): (&BTreeMap<String, usize>, &BTreeMap<String, usize>),
    (state, seed): (&[Fed], u64),
) -> std::result::Result<Run, String> {
    for (name, size) in sizes {
        if let Some(of_file) = of_files.get(name).filter(|of_file| *of_file != size) {
            return Err(format!("--dim {name}={size}, and a file of --input has {of_file} there"));
        }
    }
    let size = |name: &str| sizes.get(name).or_else(|| of_files.get(name)).copied();
    let open: Vec<&str> = graph.free().into_iter().filter(|name| size(name).is_none()).collect();
    // Dimensions of inputs from files are known by the files.
    if !open.is_empty() {
        let sample: Vec<String> = open.iter().map(|name| format!("{name}=1")).collect();
        let shapes = graph.inputs.iter().filter_map(|input| {
            let shape = input.shape.as_ref().filter(|_| !given.contains_key(&input.name))?;
            Some(format!("{} {}", input.name, shape_words(shape)))
        });
        let (shapes, names) = (shapes.collect::<Vec<_>>().join(", "), open.join(", "));
        let are = if open.len() == 1 { "is" } else { "are" };
        return Err(format!(
            "of its inputs ({shapes}), {names} {are} free: set sizes, such as --dim {}",
            sample.join(",")
        ));
    }
    let feed = |input: &GraphInput| {
        let (name, array) = (input.name.clone(), given.get(&input.name));
        let shape = match (&input.shape, array) {
            (_, Some(array)) => array.shape.clone(),
            (Some(shape), None) => shape
                .iter()
                .map(|one| match one {
                    Size::Fixed(size) => *size,
                    Size::Free(name) => size(name).unwrap_or(1),
                })
                .collect(),
            (None, None) => {
                return Err(format!(
                    "it does not say which shape its input {name:?} has: give it an array with --input {name}=FILE.npy"
                ));
            }
        };
        let values = match (array, asked.inputs.get(&input.name)) {
            (Some(array), _) => Values::File(array.numbers.clone()),
            (None, Some(InputAsked::Drawn { low, high })) => drawn(input, *low, *high)?,
            (None, Some(asked)) => {
                let path = asked.path().map_or_else(String::new, |path| path.display().to_string());
                return Err(format!("{path} was not read"));
            }
            // A sequence begins with nothing.
            (None, None) if state.iter().any(|fed| fed.input == *input.name) => {
                Values::Drawn { low: 0.0, high: 0.0 }
            }
            (None, None) => usual(input.dtype),
        };
        Ok(Feed { name, shape, values })
    };
    let inputs: Vec<Feed> = graph.inputs.iter().map(feed).collect::<std::result::Result<_, String>>()?;
    let bytes = |(feed, input): (&Feed, &GraphInput)| {
        feed.shape.iter().map(|&size| size as u128).fold(input.dtype.bytes() as u128, u128::saturating_mul)
    };
    let bytes = inputs.iter().zip(&graph.inputs).map(bytes).fold(0, u128::saturating_add);
    if bytes > MOST_BYTES {
        return Err(format!(
            "the inputs of one run take {}: take smaller sizes",
            crate::plan::workers::gigabytes(bytes)
        ));
    }
    let named = |(name, size): (&String, &usize)| format!("{name} {size}");
    let name = if sizes.is_empty() {
        "run".to_owned()
    } else {
        sizes.iter().map(named).collect::<Vec<_>>().join(", ")
    };
    Ok(Run { name, inputs, seed, sets: 1 })
}

/// Default values of an input: shares from 0 to 1; for whole numbers 0 and 1, which every table of tokens
/// has.
fn usual(dtype: Dtype) -> Values {
    Values::Drawn { low: 0.0, high: if dtype.is_float() { 1.0 } else { 2.0 } }
}

fn drawn(input: &GraphInput, low: f64, high: f64) -> std::result::Result<Values, String> {
    let (least, most) = match input.dtype {
        Dtype::Bool => (0.0, 2.0),
        Dtype::Int8 => (-128.0, 128.0),
        Dtype::Uint8 => (0.0, 256.0),
        Dtype::Int16 => (-32_768.0, 32_768.0),
        Dtype::Uint16 => (0.0, 65_536.0),
        Dtype::Int32 => (-2_147_483_648.0, 2_147_483_648.0),
        Dtype::Uint32 => (0.0, 4_294_967_296.0),
        // The range in which f64 holds every whole number.
        Dtype::Int64 => (-9_007_199_254_740_992.0, 9_007_199_254_740_992.0),
        Dtype::Uint64 => (0.0, 9_007_199_254_740_992.0),
        Dtype::Float16 => (-65_504.0, 65_504.0),
        Dtype::Float32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
        Dtype::Float64 => (f64::MIN / 2.0, f64::MAX / 2.0),
    };
    if low < least || high > most {
        let (name, dtype) = (&input.name, input.dtype);
        return Err(format!(
            "--input {name}={low}..{high} is beyond {dtype}, which goes from {least} to {most}"
        ));
    }
    Ok(Values::Drawn { low, high })
}

impl Run {
    /// Number of values in a run's inputs.
    fn numbers(&self) -> usize {
        self.inputs.iter().map(|feed| feed.shape.iter().product::<usize>()).sum()
    }

    fn is_drawn(&self) -> bool {
        self.inputs.iter().any(|feed| matches!(feed.values, Values::Drawn { low, high } if low < high))
    }

    /// Whether a seed changes what it computes: it draws inputs, or rotates those of files.
    fn varies(&self) -> bool {
        let rotates = |feed: &Feed| {
            let numbers = feed.shape.iter().product::<usize>().saturating_mul(self.sets);
            matches!(feed.values, Values::File(_)) && numbers >= protocol::ROTATED
        };
        self.is_drawn() || self.inputs.iter().any(rotates)
    }

    fn seeded(&self, seed: u64, state: &[Fed], rotated: bool) -> GraphCase {
        GraphCase { inputs: self.inputs.clone(), seed, sets: self.sets, state: state.to_vec(), rotated }
    }
}

impl Describe for Graph {
    fn kind(&self) -> WorkKind {
        match (self.load, &self.audio) {
            (Some(load), _) => work::kind(load),
            (None, Some(_)) => WorkKind::Audio,
            (None, None) => WorkKind::Graph,
        }
    }

    fn cases(&self) -> usize {
        self.cases.len()
    }

    fn case_name(&self, case: usize) -> &str {
        self.cases.get(case).map_or("", |case| &case.name)
    }

    fn case_noun(&self) -> &'static str {
        "case"
    }

    fn case_tokens(&self, case: usize) -> usize {
        self.cases.get(case).map_or(0, Run::numbers)
    }

    fn batch(&self) -> usize {
        1
    }

    fn drawn(&self, case: usize) -> usize {
        self.case_tokens(case) * self.cases.get(case).map_or(1, |case| case.sets)
    }

    fn words(&self) -> String {
        let Some(first) = self.cases.first() else { return "no run".to_owned() };
        let inputs: Vec<String> =
            first.inputs.iter().map(|feed| format!("{} {}", feed.name, dims(&feed.shape))).collect();
        let more = if self.cases.len() > 1 {
            format!(", and {} others", self.cases.len() - 1)
        } else {
            String::new()
        };
        let inputs = if inputs.is_empty() { "no input".to_owned() } else { inputs.join(", ") };
        let (runs, state) =
            (first.sets, self.state.iter().map(|fed| format!("{} fed to {}", fed.output, fed.input)));
        let state: Vec<String> = state.collect();
        match self.load {
            None if !state.is_empty() => {
                format!("sequences of {runs} runs of {inputs}{more}, with {}", state.join(" and "))
            }
            None if runs > 1 => format!("requests of {runs} runs of {inputs}{more}"),
            None => format!("runs of {inputs}{more}"),
            Some(load) => format!("{} for a run of {inputs} each", work::words(load)),
        }
    }

    fn mark_noun(&self) -> &'static str {
        "run"
    }

    fn marks(&self) -> usize {
        if self.load.is_some() { 1 } else { self.cases.first().map_or(1, |case| case.sets) }
    }

    fn asked(&self, _: KvCache, _: &[Output]) -> protocol::Work {
        self.of_reference()
    }

    fn of_reference(&self) -> protocol::Work {
        let cases = self.cases.iter().map(|run| run.seeded(run.seed, &self.state, false)).collect();
        protocol::Work::Graph(GraphWork { cases })
    }

    fn is_whole(&self, case: usize, output: &Output) -> bool {
        let Output::Tensors(tensors) = output else { return false };
        let runs = self.cases.get(case).map_or(1, |case| case.sets);
        let is_fed = |name: &str| self.state.iter().any(|fed| fed.output == name);
        // Of a sequence, what is fed to the next run is given of the last alone.
        let names = (1..=runs).flat_map(|run| {
            self.outputs.iter().filter(move |name| run == runs || self.load.is_some() || !is_fed(name))
        });
        let is_sound = |tensor: &protocol::Tensor| {
            let elements = tensor.shape.iter().map(|&size| size as u128).fold(1, u128::saturating_mul);
            let bytes =
                Dtype::from_name(&tensor.dtype).map(|dtype| elements.saturating_mul(dtype.bytes() as u128));
            bytes == Some(tensor.data.len() as u128)
        };
        tensors.iter().map(|tensor| &tensor.name).eq(names) && tensors.iter().all(is_sound)
    }

    fn has_all_sequences(&self, sample: &Sample) -> bool {
        // Every output is compared with the reference's when it arrives, and is not kept.
        matches!(sample.output, Output::Tensors(_))
    }

    fn is_done(&self, sample: &Sample) -> bool {
        let has_calls = work::has_all(self.load, sample);
        sample.marks_ns.len() == self.marks() && has_calls && matches!(sample.output, Output::Tensors(_))
    }

    fn load(&self) -> Option<Load> {
        self.load
    }

    fn proof(&self) -> Proof {
        match self.cases.iter().all(Run::varies) {
            true => Proof::OtherInputs,
            false => Proof::Nothing("every request has the same inputs, which a worker has seen before"),
        }
    }

    fn other_input(&self, seed: u64, case: usize) -> Option<Input> {
        // Each case has drawn values of its own; warm-up uses those of the plan.
        Some(Input::Seed(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ case as u64))
    }

    fn computing(&self, asked: &[(usize, &Input)]) -> Option<protocol::Work> {
        let run = |(case, input): &(usize, &Input)| {
            let Input::Seed(seed) = input else { return None };
            Some(self.cases.get(*case)?.seeded(*seed, &self.state, true))
        };
        let cases = asked.iter().map(run).collect::<Option<Vec<_>>>()?;
        Some(protocol::Work::Graph(GraphWork { cases }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str, dtype: Dtype, shape: Vec<Size>) -> GraphInput {
        GraphInput { name: name.into(), dtype, shape: Some(shape) }
    }

    fn graph() -> Description {
        let free = |name: &str| Size::Free(name.into());
        Description {
            opset: 17,
            inputs: vec![
                input("images", Dtype::Float32, vec![free("batch"), Size::Fixed(3), free("width")]),
                input("ids", Dtype::Int64, vec![free("batch")]),
                input("on", Dtype::Bool, Vec::new()),
            ],
            outputs: vec![bundle::GraphOutput { name: "y".into(), dtype: Dtype::Float32 }],
            bytes: 9,
            stored: None,
            operators: BTreeMap::new(),
        }
    }

    fn asked(dims: &str, inputs: &[&str]) -> Request {
        let dims =
            if dims.is_empty() { BTreeMap::new() } else { dims.parse::<crate::plan::Dims>().unwrap().0 };
        let inputs = inputs.iter().map(|text| text.parse::<crate::plan::NamedInput>().unwrap());
        let inputs = inputs.map(|crate::plan::NamedInput(name, input)| (name, input)).collect();
        let graph = GraphAsked { dims, inputs, ..GraphAsked::default() };
        Request { models: vec!["m.onnx".into()], graph, ..Request::default() }
    }

    fn refused(request: &Request, given: &BTreeMap<String, Given>) -> String {
        resolve(request, &graph(), given, 1).unwrap_err().to_string()
    }

    #[test]
    fn each_combination_of_sizes_is_a_case() {
        let request = asked("batch=1,2,images.2=8,16", &["ids=0..30000"]);
        let work = resolve(&request, &graph(), &BTreeMap::new(), 1).unwrap();
        let names: Vec<&str> = work.cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["batch 1, width 8", "batch 1, width 16", "batch 2, width 8", "batch 2, width 16"]);
        let shapes: Vec<&[usize]> = work.cases[3].inputs.iter().map(|feed| feed.shape.as_slice()).collect();
        assert_eq!(shapes, [&[2, 3, 16][..], &[2], &[]]);
        assert_eq!(work.cases[0].inputs[1].values, Values::Drawn { low: 0.0, high: 30000.0 });
        assert_eq!(work.cases[0].inputs[2].values, Values::Drawn { low: 0.0, high: 2.0 });
        assert_eq!(work.proof(), Proof::OtherInputs);
        let inputs = [5, 6].map(|seed| work.other_input(seed, 2).unwrap());
        let asked = work.computing(&[(2, &inputs[0]), (2, &inputs[1])]).unwrap();
        let protocol::Work::Graph(asked) = asked else { panic!("{asked:?}") };
        assert_eq!(asked.cases[1].inputs, work.cases[2].inputs);
        assert_ne!(asked.cases[0].seed, asked.cases[1].seed);
    }

    #[test]
    fn a_file_sets_the_sizes_that_its_shape_has() {
        let array =
            |shape: &[usize], dtype| Given { dtype, shape: shape.to_vec(), numbers: "n".into(), runs: 1 };
        let file = ["images=a.npy"];
        let of = |array: Given| BTreeMap::from([("images".to_owned(), array)]);
        let given = of(array(&[2, 3, 5], Dtype::Float32));
        let work = resolve(&asked("", &file), &graph(), &given, 1).unwrap();
        assert_eq!(work.cases[0].inputs[1].shape, [2]);
        assert_eq!(work.cases[0].inputs[0].values, Values::File("n".into()));
        assert!(
            refused(&asked("batch=3", &file), &given)
                .contains("--dim batch=3, and a file of --input has 2 there")
        );
        let wrong = refused(&asked("", &file), &of(array(&[2, 4, 5], Dtype::Float32)));
        assert!(wrong.contains("has the shape batchx3xwidth, and the file's is 2x4x5"), "{wrong}");
        let wrong = refused(&asked("", &file), &of(array(&[2, 3, 5], Dtype::Float64)));
        assert!(wrong.contains("takes float32, and the file holds float64"), "{wrong}");
    }

    #[test]
    fn what_does_not_fit_the_file_is_one_sentence() {
        let none = BTreeMap::new();
        let open = "of its inputs (images batchx3xwidth, ids batch, on scalar), batch, width are free: set sizes, such \
                    as --dim batch=1,width=1";
        let whole = || asked("batch=1,width=1", &[]);
        for (request, sentence) in [
            (asked("", &[]), open),
            (asked("batch=1", &[]), "width is free: set sizes, such as --dim width=1"),
            (asked("batch=1,ids.0=1", &[]), "sets the dimension \"batch\" twice"),
            (asked("height=1", &[]), "no free dimension \"height\"; it has batch, width"),
            (asked("batch=1,width=1", &["z=1"]), "no input \"z\"; it has images, ids, on"),
            (asked("batch=1,width=1", &["on=0..3"]), "beyond bool"),
            (Request { new_tokens: vec![3], ..whole() }, "takes no --new-tokens"),
            (asked("batch=4000000,width=4000000", &[]), "take smaller sizes"),
        ] {
            let why = refused(&request, &none);
            assert!(why.contains(sentence), "{sentence}: {why}");
        }
        let drawn = Description { operators: [("Bernoulli".to_owned(), 1)].into(), ..graph() };
        let why = resolve(&whole(), &drawn, &none, 1).unwrap_err().to_string();
        assert!(why.contains("draws random numbers (Bernoulli)"), "{why}");
    }
}
